"""Expert parallelism for vLLM on CPU: `FERRY_VLLM=1 vllm serve MODEL -dp 2 --enable-expert-parallel --enforce-eager`.

The entry point of the group vllm.platform_plugins, which vLLM asks in each of its processes. Only FERRY_VLLM=1 makes
it answer, so an installed ferry changes nothing for anyone else. docs/vllm.md says what works.
"""

import os

__all__ = ["find_platform"]


def find_platform():
    """The platform's qualified name, or None. Imports neither vllm nor torch: vllm.config is half made when it asks."""
    return "ferry.vllm.platform.FerryCpuPlatform" if os.environ.get("FERRY_VLLM") == "1" else None
