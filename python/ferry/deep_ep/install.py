"""install() makes `import deep_ep`, and imports of the submodules that inference engines use, find ferry.deep_ep."""

import importlib
import importlib.machinery
import sys
import types

import ferry
from ferry.deep_ep.beside import find_pkgs

# Modules of DeepEP 1.x and 2.x, and the modules of ferry that have their names.
_BESIDE = "ferry.deep_ep.beside"
_SUBMODULES = {
    "deep_ep.buffer": ["ferry.deep_ep.buffer", "ferry.deep_ep.config", "ferry.deep_ep.events"],
    "deep_ep.buffers": ["ferry.deep_ep"],
    "deep_ep.buffers.elastic": ["ferry.deep_ep.elastic", "ferry.deep_ep.events"],
    **{f"deep_ep.buffers.{name}": ["ferry.deep_ep.ep_buffer", "ferry.deep_ep.events"] for name in (
        "ep", "bucket", "engram", "pp", "allocator")},
    "deep_ep.comm": ["ferry.deep_ep.beside.comm", "ferry.deep_ep.elastic"],
    "deep_ep.buffers.legacy": ["ferry.deep_ep.buffer", "ferry.deep_ep.config", "ferry.deep_ep.events"],
    "deep_ep.utils": ["ferry.deep_ep.events"],
    "deep_ep.utils.event": ["ferry.deep_ep.events"],
    **{f"deep_ep.utils.{name}": [f"{_BESIDE}.{name}"] for name in (
        "math", "envs", "refs", "testing", "gate", "semantic", "comm", "find_pkgs")},
    "deep_ep._C": [f"{_BESIDE}.private"],
}
_VERSION = "2.1.0+ferry"  # the release whose API this is


def install():
    """Makes `import deep_ep` return this package in this process, and returns the module.

    Call it before anything imports deep_ep. Calling it again changes nothing. Raises ferry.InvalidArgument when another
    deep_ep has been imported already. No other module and no environment variable is touched.
    """
    present = sys.modules.get("deep_ep")
    if present is not None:
        if getattr(present, "__ferry__", False):
            return present
        origin = getattr(present, "__file__", "unknown")
        raise ferry.InvalidArgument(f"deep_ep was imported before install(), from {origin}")
    module = _module("deep_ep", ["ferry.deep_ep"])
    module.__version__ = _VERSION
    module.__dict__.update({name: getattr(find_pkgs, name) for name in ("find_cuda_home", "check_nccl_so", "init_jit")})
    module.__ferry__ = True
    for name, sources in _SUBMODULES.items():
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, _module(name, sources))
    return module


def _module(name, sources):
    """Makes a module with the public names of `sources`. importlib.util.find_spec finds the module too."""
    module = types.ModuleType(name, f"{name} of DeepEP, by {sources[0]}.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    for source in map(importlib.import_module, sources):
        public = getattr(source, "__all__", [each for each in vars(source) if not each.startswith("_")])
        module.__dict__.update({each: getattr(source, each) for each in public})
    sys.modules[name] = module
    return module
