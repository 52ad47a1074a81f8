"""Makes torch.distributed use gloo for programs that name NCCL or HCCL as backend, and hides the differences.

gloo has no float8, so tensors of float8 are sent as bytes. gloo gathers only into a tensor of the concatenated shape,
so tensors are flattened for it. The arguments device_id and pg_options are ignored.
"""

import functools

import torch
import torch.distributed as dist
import torch.distributed.device_mesh
import torch.distributed.distributed_c10d as c10d

from ferry.on_cpu.placement import placed

_DEVICE_BACKENDS = ("nccl", "hccl", "cuda", "npu")
_MOVES = ("all_gather", "all_to_all", "all_to_all_single", "broadcast", "gather", "scatter", "send", "recv", "isend",
          "irecv")
_GATHERS = ("all_gather_into_tensor", "all_gather_single", "_all_gather_base")
_float8 = tuple(getattr(torch, name) for name in dir(torch) if name.startswith("float8_"))


def _backend(backend):
    """Returns "gloo" for a backend of a device and for None, and any other backend unchanged."""
    named = str(backend or "nccl").lower()
    return "gloo" if any(each in named for each in _DEVICE_BACKENDS) else backend


def _as_bytes(value):
    if isinstance(value, torch.Tensor):
        return value.view(torch.uint8) if value.dtype in _float8 else value
    return [_as_bytes(each) for each in value] if isinstance(value, list) else value


def _moves(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*map(_as_bytes, args), **{name: _as_bytes(value) for name, value in kwargs.items()})

    return call


def _gathers(function):
    @functools.wraps(function)
    def call(output_tensor, input_tensor, *args, **kwargs):
        return function(_as_bytes(output_tensor).view(-1), _as_bytes(input_tensor).reshape(-1), *args, **kwargs)

    return call


def _init(function):
    @functools.wraps(function)
    def init_process_group(backend=None, *args, device_id=None, pg_options=None, **kwargs):
        return function(_backend(backend), *args, **kwargs)

    return init_process_group


def _new_group(function):
    @functools.wraps(function)
    def new_group(ranks=None, timeout=None, backend=None, pg_options=None, *args, device_id=None, **kwargs):
        return function(ranks, timeout, backend and _backend(backend), None, *args, **kwargs)

    return new_group


def _mesh(function):
    @functools.wraps(function)
    def call(device_type, *args, **kwargs):
        return function(str(getattr(placed(device_type), "type", device_type)), *args, **kwargs)

    return call


class _Options:
    """Replaces ProcessGroupNCCL and its Options. Any option is accepted and has no effect."""

    def __init__(self, *_, **__):
        self.config = self

    Options = None


_Options.Options = _Options


def _replace(name, make):
    if hasattr(c10d, name):
        replaced = make(getattr(c10d, name))
        setattr(c10d, name, replaced)
        if hasattr(dist, name):
            setattr(dist, name, replaced)


@functools.lru_cache(maxsize=None)
def install():
    """Replaces the functions of torch.distributed, once for all device types."""
    for name in _MOVES:
        _replace(name, _moves)
    for name in _GATHERS:
        _replace(name, _gathers)
    _replace("init_process_group", _init)
    _replace("new_group", _new_group)
    _replace("is_nccl_available", lambda _: lambda: True)
    mesh = torch.distributed.device_mesh
    mesh.init_device_mesh = dist.init_device_mesh = _mesh(mesh.init_device_mesh)
    for module in (dist, c10d):
        if not hasattr(module, "ProcessGroupNCCL"):
            module.ProcessGroupNCCL = _Options
