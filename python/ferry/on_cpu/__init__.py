"""Programs that say "cuda" or "npu" on a machine that has none: their device is the CPU.

    ferry.on_cpu.map_device("cuda")

replaces, in this process, what such programs call of torch: see docs/deep_ep.md, "Unchanged". Only `python -m
ferry.deep_ep --map-cuda` and `ferry.torch_npu.install(map_npu=True)` do this; nothing else of ferry needs it.
"""

from ferry.on_cpu.refusal import NotMapped
from ferry.on_cpu.streams import Event, Stream

__all__ = ["Event", "NotMapped", "Stream", "map_device"]

_mapped = set()
_KINDS = {"cuda": "CUDA", "npu": "PrivateUse1"}  # device type -> dispatch key


def map_device(kind):
    """From now on the device `kind`, "cuda" or "npu", is the CPU in this process, all threads of it. Once is enough.

    Call it before the program's own modules are imported: names that they took from torch stay what they are.
    """
    if kind not in _KINDS:
        raise ValueError(f"map_device: kind is {kind!r}, need one of {', '.join(map(repr, _KINDS))}")
    if kind in _mapped:
        return
    from ferry.on_cpu import accelerator, collectives, placement, tracing  # which import much of torch

    _mapped.add(kind)
    placement.install(kind)
    accelerator.install(kind)
    collectives.install()
    tracing.install(_KINDS[kind])
