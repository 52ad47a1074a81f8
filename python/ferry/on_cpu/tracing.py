"""What looks at a program's code instead of running it: compilers (off), the profiler (of the CPU), and operators that
a program registers for its device (registered for the CPU)."""

import functools

import torch
import torch.library
import torch.profiler

_CPU_KEY = "CPU"


def _itself(function=None, *_, **__):
    """A compiler that gives back what it is given, as a call and as a decorator."""
    return function if function is not None else lambda decorated: decorated


def _of_the_cpu(init):
    cpu = torch.profiler.ProfilerActivity.CPU

    @functools.wraps(init)
    def call(self, *args, **kwargs):
        if "activities" in kwargs or not args:
            kwargs["activities"] = [cpu]
        return init(self, *((list([cpu]), *args[1:]) if args else ()), **kwargs)

    return call


def _registers(impl, key):
    """Library.impl: the kernel of `key` is the CPU's, unless the operator has one."""

    @functools.wraps(impl)
    def call(self, op_name, fn, dispatch_key="", *args, **kwargs):
        if dispatch_key != key:
            return impl(self, op_name, fn, dispatch_key, *args, **kwargs)
        name = op_name if isinstance(op_name, str) else op_name._schema.name
        name = name if "::" in name else f"{self.ns}::{name}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, _CPU_KEY):
            return None
        return impl(self, op_name, fn, _CPU_KEY, *args, **kwargs)

    return call


def _device_types(function):
    """torch.library.custom_op and register_kernel: device types are the CPU."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        if kwargs.get("device_types") in ("cuda", "npu"):
            kwargs["device_types"] = "cpu"
        args = tuple("cpu" if isinstance(arg, str) and arg in ("cuda", "npu") else arg for arg in args)
        return function(*args, **kwargs)

    return call


@functools.lru_cache(maxsize=None)
def _install_once():
    torch.compile = torch.jit.script = _itself
    torch.profiler.profile.__init__ = _of_the_cpu(torch.profiler.profile.__init__)
    torch.library.custom_op = _device_types(torch.library.custom_op)
    torch.library.register_kernel = _device_types(torch.library.register_kernel)


def install(key):
    """key: the dispatch key of the device."""
    _install_once()
    torch.library.Library.impl = _registers(torch.library.Library.impl, key)
