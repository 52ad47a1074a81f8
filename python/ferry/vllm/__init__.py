"""Expert parallelism for vLLM on CPU: `FERRY_VLLM=1 vllm serve MODEL -dp 2 --enable-expert-parallel`.

find_platform is the entry point of the group vllm.platform_plugins, which vLLM calls in each of its processes. It
returns a platform only with FERRY_VLLM=1, so that an installed ferry changes no other program. docs/vllm.md lists the
supported options.
"""

import os

__all__ = ["find_platform", "use_views"]


def find_platform():
    """Returns the qualified name of the platform, or None. It must not import vllm or torch, since vLLM has not
    imported vllm.config yet."""
    return "ferry.vllm.platform.FerryCpuPlatform" if os.environ.get("FERRY_VLLM") == "1" else None


def use_views():
    """The entry point of the group vllm.general_plugins. Makes engines go on in the next view of their ranks, with
    vLLM's --enable-fault-tolerance."""
    if os.environ.get("FERRY_VLLM") == "1":
        from ferry.vllm import engine

        engine.use()
