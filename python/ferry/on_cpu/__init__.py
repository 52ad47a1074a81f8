"""Runs programs that name the device "cuda" or "npu" on a machine without one: their device is the CPU.

    ferry.on_cpu.map_device("cuda")

This call replaces, in this process, the functions of torch that such programs call (docs/deep_ep.md, "Unchanged"). Only
`python -m ferry.deep_ep --map-cuda` and `ferry.torch_npu.install(map_npu=True)` use it.
"""

from ferry.on_cpu.refusal import NotMapped
from ferry.on_cpu.streams import Event, Stream

__all__ = ["Event", "NotMapped", "Stream", "map_device"]

_mapped = set()
_KINDS = {"cuda": "CUDA", "npu": "PrivateUse1"}  # device type -> dispatch key


def map_device(kind):
    """Makes the CPU the device `kind`, "cuda" or "npu", in all threads of this process. A second call does nothing.

    It must be called before the program's own modules are imported: names that they have imported from torch before are
    not replaced. Raises ValueError for another kind.
    """
    if kind not in _KINDS:
        raise ValueError(f"map_device: kind is {kind!r}, need one of {', '.join(map(repr, _KINDS))}")
    if kind in _mapped:
        return
    from ferry.on_cpu import accelerator, collectives, placement, tracing  # these import much of torch

    _mapped.add(kind)
    placement.install(kind)
    accelerator.install(kind)
    collectives.install()
    tracing.install(_KINDS[kind])
