"""The functions of torch.cuda (torch.npu) for programs whose device is the CPU. Their device exists, has memory and is
always idle.

A function of torch.cuda that is not replaced here raises NotMapped, with its name, when it needs the device. torch.npu
has only the names that are listed here; any other raises AttributeError. streams.py has streams and events.
"""

import contextlib
import os
import sys
import types

import torch

from ferry.on_cpu import placement, streams
from ferry.on_cpu.refusal import NotMapped, refusal

_NODE_RANKS = 8  # devices of a node, if no launcher gives the number of its ranks
_current = {"device": None}  # the argument of set_device


class Properties:
    """The properties by which a program divides its work. Compute units, their memory and clock (kHz) and the
    capability are those of the GPU that DeepEP is written for. `uuid` is the same for every device: all are the CPU."""

    name, major, minor, multi_processor_count, warp_size, L2_cache_size = "cpu", 9, 0, 132, 32, 50 << 20
    is_integrated = is_multi_gpu_board = pci_bus_id = pci_device_id = pci_domain_id = 0
    max_threads_per_block, max_threads_per_multi_processor, regs_per_multiprocessor = 1024, 2048, 1 << 16
    shared_memory_per_block, shared_memory_per_block_optin = 48 << 10, 227 << 10
    shared_memory_per_multiprocessor = 228 << 10
    clock_rate, memory_clock_rate, memory_bus_width = 1_980_000, 2_619_000, 5120
    gcnArchName, uuid = "", "00000000-0000-0000-0000-000000000000"
    cube_core_num, vector_core_num = 24, 48

    @property
    def total_memory(self):
        return _host_bytes("SC_PHYS_PAGES")


def device_count():
    """Returns the number of ranks of this host from LOCAL_WORLD_SIZE, or 8 where it is not set."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", _NODE_RANKS))


def current_device():
    """Returns the argument of set_device, or else LOCAL_RANK, or else 0."""
    device = _current["device"]
    return int(os.environ.get("LOCAL_RANK", 0)) if device is None else device


def set_device(device):
    """Stores the number of a device for current_device(). Any number is accepted, since every device is the CPU."""
    if isinstance(device, str):
        number = device.rpartition(":")[2]
        device = int(number) if number.isdigit() else None
    if isinstance(device, int):
        _current["device"] = device


class device(contextlib.AbstractContextManager):
    """A context manager. In its block current_device() is `device`."""

    def __init__(self, device):
        self.idx = device

    def __enter__(self):
        self.prev_idx = _current["device"]
        set_device(self.idx)
        return self

    def __exit__(self, *_):
        _current["device"] = self.prev_idx


def mem_get_info(device=None):
    """Returns (free, total) bytes of the host's memory."""
    return _host_bytes("SC_AVPHYS_PAGES"), _host_bytes("SC_PHYS_PAGES")


def _host_bytes(name):
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _seed(seed):
    """Seeds the CPU's generator, which draws the random tensors of the device."""
    torch.default_generator.manual_seed(int(seed))


def _nothing(*_, **__):
    """Does nothing."""


def _always(value):
    return lambda *_, **__: value


class _Runtime:
    """The object that torch.cuda.cudart() returns. It has the profiler's switches only; other names raise NotMapped."""

    cudaProfilerStart = cudaProfilerStop = staticmethod(_always(0))

    def __getattr__(self, name):
        raise NotMapped(f"cudart().{name} does not work here: there is no CUDA runtime")


def _names(prefix):
    """Returns {name: value} of all names that are replaced in the module `prefix`."""
    nothing = dict.fromkeys((
        "synchronize", "empty_cache", "init", "_lazy_init", "_sleep", "ipc_collect", "set_per_process_memory_fraction",
        "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
        "reset_accumulated_memory_stats", "set_sync_debug_mode", "_record_memory_history", "_dump_snapshot"), _nothing)
    zero = dict.fromkeys((
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
        "max_memory_cached", "utilization", "get_sync_debug_mode"), _always(0))
    random = {
        "manual_seed": _seed, "manual_seed_all": _seed, "seed": torch.seed, "seed_all": torch.seed,
        "initial_seed": torch.initial_seed, "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0])}
    return {
        **nothing, **zero, **random, **placement.tensor_types(), **streams.graph_refusals(prefix),
        "is_available": _always(True), "is_initialized": _always(True), "_is_in_bad_fork": _always(False),
        "is_bf16_supported": _always(True), "is_current_stream_capturing": _always(False),
        "can_device_access_peer": _always(True), "device_count": device_count, "current_device": current_device,
        "set_device": set_device, "device": device, "device_of": lambda tensor: device(None),
        "get_device_name": _always("cpu"), "get_device_capability": _always((9, 0)), "get_arch_list": _always([]),
        "get_device_properties": lambda device=None: Properties(), "mem_get_info": mem_get_info,
        "memory_stats": lambda device=None: {}, "memory_summary": _always(""), "memory_snapshot": lambda *_: [],
        "Stream": streams.Stream, "ExternalStream": streams.Stream, "Event": streams.Event, "stream": streams.stream,
        "StreamContext": streams.stream, "current_stream": streams.current_stream,
        "default_stream": streams.default_stream, "set_stream": streams.set_stream,
        "cudart": lambda: _Runtime(), "CUDAGraph": streams.Graph, "NPUGraph": streams.Graph,
        **{name: refusal(f"{prefix}.{name}", "memory of a device is memory of the host here") for name in (
            "caching_allocator_alloc", "caching_allocator_delete", "MemPool", "use_mem_pool", "CUDAPluggableAllocator",
            "change_current_allocator")},
    }


def _refuse_init():
    """Replaces torch.cuda._lazy_init, which every function that needs a device calls. Raises NotMapped with the name of
    the caller."""
    caller = sys._getframe(1)
    name = caller.f_code.co_name
    if caller.f_globals.get("__name__", "").startswith("torch.cuda"):
        name = f"torch.cuda.{name}"
    raise NotMapped(f"{name} needs a CUDA device, and this program's device is the CPU (--map-cuda): ferry does "
                    "not replace this call")


def _install_cuda():
    cuda = torch.cuda
    names = {**_names("torch.cuda"), "_lazy_init": _refuse_init}
    for name, value in names.items():
        setattr(cuda, name, value)
        for module in (cuda.streams, cuda.memory, cuda.random, cuda.graphs):
            if hasattr(module, name) and not isinstance(getattr(module, name), types.ModuleType):
                setattr(module, name, value)
    cuda.nccl.version = _always((2, 30, 4))
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, _nothing)
    cuda.profiler.start = cuda.profiler.stop = cuda.profiler.init = _nothing
    torch.version.cuda = "12.9"


def _install_npu():
    npu = types.ModuleType("torch.npu", "torch.npu of ferry.torch_npu.install(map_npu=True): the CPU.")
    npu.__dict__.update(_names("torch.npu"))
    npu.memory, npu.streams, npu.random = npu, npu, npu
    npu.__getattr__ = lambda name: _refuse_name("torch.npu", name)
    sys.modules["torch.npu"] = torch.npu = npu


def _refuse_name(module, name):
    raise AttributeError(f"{module} of ferry has no {name!r}: docs/torch_npu.md lists the names of map_npu")


def _install_generic():
    """Maps torch.Stream, torch.Event and torch.accelerator, whose names contain no device type."""
    torch.Stream, torch.Event = streams.Stream, streams.Event
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    for name, value in {
            "is_available": _always(True), "device_count": device_count,
            "current_accelerator": _always(torch.device("cpu")),
            "current_device_index": current_device, "current_device_idx": current_device,
            "set_device_index": set_device, "set_device_idx": set_device, "current_stream": streams.current_stream,
            "set_stream": streams.set_stream, "synchronize": _nothing, "empty_cache": _nothing}.items():
        setattr(accelerator, name, value)


def install(kind):
    """Maps the module of the device type `kind`."""
    _install_cuda() if kind == "cuda" else _install_npu()
    _install_generic()
