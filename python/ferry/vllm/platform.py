"""vLLM's CPU platform with the communicator of ferry.

Imported while vllm.config is half made: it may import nothing of vllm but vllm.platforms.cpu.
"""

from vllm.platforms.cpu import CpuPlatform


class FerryCpuPlatform(CpuPlatform):
    """CPU ranks whose expert-parallel group is ferry's."""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "ferry.vllm.communicator.FerryCommunicator"
