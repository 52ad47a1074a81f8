"""Checks of the arguments of low-latency calls. They raise InvalidArgument with the name, the value and the limit.

R ranks, E experts, L of them on this rank, T tokens of this rank, M the most tokens of a rank, H hidden, K top-k.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch

from ferry.deep_ep.layout import CPU, check_tensor, cpu_array, describe
from ferry.deep_ep.rows import FLOATS, detached
from ferry.deep_ep.scalars import MOST_TOPK, check_flags, flag, integer
from ferry.errors import InvalidArgument, as_refusal
from ferry.torch import refusing

CALL = "num_max_dispatch_tokens_per_rank", "hidden", "num_experts", "top_k", "dtype", "wire"  # names an exchange


def config(max_tokens, num_ranks, **shape):
    """Returns the keyword arguments of the exchange for dispatches of at most max_tokens tokens of each rank."""
    return dict(layout="padded", expert_capacity=num_ranks * max_tokens, scale_order="column_major", **shape)


@functools.lru_cache(maxsize=64)
def key(max_tokens, num_ranks, **shape):
    """Returns config() in the form that Exchanges.hold takes, a sorted tuple of pairs."""
    return tuple(sorted(config(max_tokens, num_ranks, **shape).items()))


class Refusing(refusing.Refusing):
    """Refuses a call whose arguments are wrong. Exceptions of torch and Python are raised as InvalidArgument."""

    def __exit__(self, kind, error, traceback):
        super().__exit__(kind, error, traceback)
        if isinstance(error, Exception) and as_refusal(error) is not error:
            raise as_refusal(error)


class Switches(NamedTuple):
    """The switches of a dispatch as the caller gave them. check() must be called before `wire` is read."""

    use_fp8: Any
    round_scale: Any
    use_ue8m0: Any
    async_finish: Any
    return_recv_hook: Any

    def check(self):
        check_flags(**self._asdict())

    @property
    def wire(self):
        """The wire format that DeepEP's switches choose."""
        if not self.use_fp8:
            return "none"
        return "fp8_ue8m0" if self.use_ue8m0 else "fp8_pow2" if self.round_scale else "fp8"


def check_shapes(x, topk_idx, max_tokens, num_experts):
    """Checks the arguments that decide which exchange a dispatch uses, and returns (max_tokens, num_experts) as ints.
    When this check fails, the other ranks are most likely in the exchange of the last dispatch."""
    read_rows(x)
    if not isinstance(topk_idx, torch.Tensor) or topk_idx.dim() != 2:
        raise InvalidArgument(f"topk_idx is {describe(topk_idx)}, need [tokens, top-k]")
    if not 1 <= topk_idx.shape[1] <= MOST_TOPK:
        raise InvalidArgument(f"topk_idx is {describe(topk_idx)}, need a top-k of 1 to {MOST_TOPK}")
    return integer("num_max_dispatch_tokens_per_rank", max_tokens, 1), integer("num_experts", num_experts, 1)


def check_dispatch(x, max_tokens, switches):
    _check_finish(switches.async_finish and switches.return_recv_hook)
    if switches.use_fp8 and switches.use_ue8m0 and not switches.round_scale:
        raise InvalidArgument("use_ue8m0 needs round_scale: it packs the exponents of scales that are powers of two")
    if len(x) > max_tokens:
        raise InvalidArgument(f"x has {len(x)} tokens, num_max_dispatch_tokens_per_rank is {max_tokens}")


def check_combine(use_logfmt, zero_copy, async_finish, return_recv_hook):
    """Checks the switches of a combine, and returns use_logfmt as a bool."""
    check_flags(zero_copy=zero_copy, async_finish=async_finish, return_recv_hook=return_recv_hook)
    use_logfmt = flag("use_logfmt", use_logfmt)
    _check_finish(async_finish and return_recv_hook)
    if use_logfmt and zero_copy:
        raise InvalidArgument("zero_copy and use_logfmt exclude each other: rows read in place are not encoded")
    return use_logfmt


def _check_finish(hook_and_async):
    if hook_and_async:
        raise InvalidArgument("async_finish and return_recv_hook exclude each other: the hook is what finishes")


def check_statistics(statistics, num_local, num_ranks):
    """Checks `statistics`, (counts int32 [L], waits int64 [R] or [R, R]); None: not given."""
    counts, waits = statistics
    if counts is not None:
        cpu_array(counts, "cumulative_local_expert_recv_stats", (torch.int32,), (num_local,))
    if waits is not None:
        square = isinstance(waits, torch.Tensor) and waits.dim() == 2
        cpu_array(waits, "wait_recv_cost_stats", (torch.int64,), (num_ranks, num_ranks) if square else (num_ranks,))


def check_handle(handle, sent):
    """Checks that the rows of the dispatch have been received and that M and E in the handle are those of the dispatch:
    programs make handles of their own from the parts of ferry's handles."""
    if sent.route is None:
        raise InvalidArgument("the hook of this dispatch was not called: its rows are not here yet")
    if len(handle) != 5:
        raise InvalidArgument(f"the handle has {len(handle)} entries, need 5")
    if (handle[2], handle[4]) != (sent.max_tokens, sent.num_experts):
        raise InvalidArgument(f"the handle says M {handle[2]} and {handle[4]} experts, its dispatch was of "
                              f"{sent.max_tokens} and {sent.num_experts}")


def outputs(sent):
    """Returns the rows of a combine with zero_copy, from get_next_low_latency_combine_buffer."""
    if sent.outputs is None:
        raise InvalidArgument("zero_copy needs get_next_low_latency_combine_buffer(handle), once for each combine")
    return sent.outputs


def read_ids(topk_idx, shape, device=CPU):
    return check_tensor(topk_idx, "topk_idx", (torch.int64, torch.int32), shape, device)


def read_weights(topk_idx, topk_weights, sent_ids):
    """Returns the weights, float32 [T, K], with 0 where topk_idx of the combine is -1 and the dispatch sent a row."""
    ids = read_ids(topk_idx, sent_ids.shape).numpy()
    weights = cpu_array(topk_weights, "topk_weights", (torch.float32,), sent_ids.shape)
    if ids.dtype == sent_ids.dtype and ids.tobytes() == sent_ids.tobytes():
        return detached(topk_weights)
    differ = ids != sent_ids
    if (ids[differ] >= 0).any():
        token, k = np.argwhere(differ & (ids >= 0))[0]
        raise InvalidArgument(f"topk_idx is {ids[token, k]} at token {token}, k {k}; the dispatch was given "
                              f"{sent_ids[token, k]}")
    return torch.from_numpy(np.where(differ, np.float32(0), weights))


def read_rows(x, places=("any",)):
    """Checks x and returns it without a gradient. `places` has all extents except the last."""
    fits = isinstance(x, torch.Tensor) and x.dim() == len(places) + 1 and x.dtype in FLOATS
    if not fits or places not in (("any",), x.shape[:-1]):
        raise InvalidArgument(f"x is {describe(x)}, need bfloat16, float16 or float32 "
                              f"[{', '.join(map(str, (*places, 'any')))}]")
    return detached(x)
