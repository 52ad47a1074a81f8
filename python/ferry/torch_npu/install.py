"""install() makes `import torch_npu` find ferry.torch_npu. With map_npu it also makes the CPU the program's NPU."""

import sys


def install(map_npu=False):
    """Makes `import torch_npu` find ferry.torch_npu in this process.

    With map_npu the CPU becomes the NPU of the program: docs/torch_npu.md describes the meaning of `device="npu"`,
    `.npu()`, `torch.npu` and HCCL. It must then be called before the program's own modules are imported. Without
    map_npu torch has no `npu` device, and torch.ops has no `npu` namespace.

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
