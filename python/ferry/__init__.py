"""ferry: dispatch and combine of Mixture-of-Experts tokens.

    group = ferry.init()
    exchange = group.exchange(max_tokens=128, hidden=7168, num_experts=256, top_k=8)
    received = exchange.dispatch(tokens, topk_ids)
    outputs = experts(received.rows, received.handle.tokens_per_expert)
    result = exchange.combine(outputs, received.handle, topk_weights)

Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, L experts of this rank, N received rows.
ferry.torch has the differentiable functions. ferry.deep_ep and ferry.torch_npu have the functions of these libraries
under the same names.
"""

from importlib import import_module
from types import ModuleType

from ferry._core import Collectives, Exchange, Group, Handle, Operation, Received, window_bytes
from ferry._core import version as __version__
from ferry.errors import (
    Broken,
    Capacity,
    Closed,
    Error,
    Interrupted,
    InvalidArgument,
    Mismatch,
    PeerLost,
    PeerRejected,
    System,
    Timeout,
)
from ferry.group import await_place, init, run_threads, spawn
from ferry.planner import plan
from ferry.stats import Stats, WindowBytes
from ferry.types import Settings

__all__ = [
    "Broken", "Capacity", "Closed", "Collectives", "Error", "Exchange", "Group", "Handle", "Interrupted",
    "InvalidArgument", "Mismatch", "Operation", "PeerLost", "PeerRejected", "Received", "Settings", "Stats",
    "System", "Timeout", "WindowBytes", "await_place", "init", "plan", "run_threads", "spawn", "window_bytes",
]

_LATER = ("deep_ep", "jax", "moe", "placement", "testing", "torch", "torch_backend", "torch_npu", "transformers",
          "vllm")


def __getattr__(name: str) -> ModuleType:
    """Imports a module that needs torch or jax when it is first used."""
    if name in _LATER:
        return import_module(f"ferry.{name}")
    raise AttributeError(f"module 'ferry' has no attribute {name!r}")
