"""deep_ep.utils.semantic: defaults, and a cache of methods that does not keep their objects."""

import functools
import weakref


def value_or(value, default):
    """value, or default for None."""
    return default if value is None else value


def weak_lru(maxsize: int = 128, typed: bool = False):
    """functools.lru_cache for methods: `self` is kept weakly."""

    def decorate(method):
        @functools.lru_cache(maxsize, typed)
        def cached(self, *args, **kwargs):
            return method(self(), *args, **kwargs)

        @functools.wraps(method)
        def call(self, *args, **kwargs):
            return cached(weakref.ref(self), *args, **kwargs)

        return call

    return decorate
