"""Switches compilers off, makes the profiler record the CPU, and registers operators of a program's device for the
CPU."""

import functools

import torch
import torch.library
import torch.profiler

_CPU_KEY = "CPU"


def _itself(function=None, *_, **__):
    """Replaces a compiler. It returns the function unchanged, called directly or used as a decorator."""
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
    """Wraps Library.impl so that a kernel for the dispatch key `key` is registered for the CPU, unless the operator has
    a kernel for the CPU."""

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
    """Wraps torch.library.custom_op or register_kernel so that the device types cuda and npu mean the CPU."""

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
    """Maps the device with the dispatch key `key`."""
    _install_once()
    torch.library.Library.impl = _registers(torch.library.Library.impl, key)
