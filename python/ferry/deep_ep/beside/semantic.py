"""deep_ep.utils.semantic: a function for default values, and a cache for methods."""

import functools
import weakref


def value_or(value, default):
    """Returns value, or default if value is None."""
    return default if value is None else value


def weak_lru(maxsize: int = 128, typed: bool = False):
    """functools.lru_cache for methods. The cache refers to `self` weakly, so it does not keep the object alive."""

    def decorate(method):
        @functools.lru_cache(maxsize, typed)
        def cached(self, *args, **kwargs):
            return method(self(), *args, **kwargs)

        @functools.wraps(method)
        def call(self, *args, **kwargs):
            return cached(weakref.ref(self), *args, **kwargs)

        return call

    return decorate
