# What the types in nb::sig(...) are, for nanobind's stubgen.
_core.__prefix__:
    from ferry.stats import Stats, WindowBytes
    from ferry.types import AnyArray, Array, Result, Settings
