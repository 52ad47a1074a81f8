"""install(): makes `import torch_npu` find ferry.torch_npu, and with map_npu the NPU of the program the CPU."""

import sys


def install(map_npu=False):
    """Makes `import torch_npu` find ferry.torch_npu in this process.

    map_npu: also, the NPU of the program is the CPU: `device="npu"`, `.npu()`, `torch.npu` and HCCL mean what
    docs/torch_npu.md says. Call it before the program's own modules are imported. Without it nothing else changes:
    torch has no `npu` device, and torch.ops no `npu` namespace.

    Raises RuntimeError when another torch_npu is imported already.
    """
    ours = sys.modules[__package__]
    if sys.modules.setdefault("torch_npu", ours) is not ours:
        raise RuntimeError(f"another torch_npu is imported already: {sys.modules['torch_npu']!r}")
    if map_npu:
        from ferry import on_cpu
        from ferry.torch_npu import hccl

        on_cpu.map_device("npu")
        hccl.install()
        ours.npu = sys.modules["torch_npu.npu"] = sys.modules["torch.npu"]
