"""Checks of the arguments of ElasticBuffer's calls. They raise ferry.InvalidArgument with name, value and limit."""

import numbers

import torch

from ferry.deep_ep.elastic_handle import Call
from ferry.deep_ep.layout import cpu_array
from ferry.deep_ep.scalars import check_flags, integer
from ferry.errors import InvalidArgument

_MOST_SECONDS = 2**31 - 1
_SWITCHES = ("async_with_compute_stream", "allocate_on_comm_stream", "do_handle_copy", "do_cpu_sync", "do_expand",
             "do_zero_padding", "use_tma_aligned_col_major_sf")  # switches of a dispatch


def check_asked(asked):
    """Checks the switches and the numbers of a dispatch that have no effect. call_of reads the others."""
    check_flags(**{name: getattr(asked, name) for name in _SWITCHES})
    integer("num_sms", asked.num_sms)
    integer("num_qps", asked.num_qps)


def call_of(asked, max_tokens):
    """Returns the Call by which the exchange of a dispatch is found. The other arguments are checked later, when the
    dispatch can be refused in that exchange."""
    cpu_array(asked.topk_idx, "topk_idx", (torch.int64, torch.int32), (None, None))
    alignment = 1 if asked.expert_alignment is None else integer("expert_alignment", asked.expert_alignment, 1)
    return Call(integer("num_experts", asked.num_experts, 1), integer("num_max_tokens_per_rank", max_tokens, 1),
                alignment, bool(asked.do_expand), asked.do_cpu_sync is None or bool(asked.do_cpu_sync), asked.topk_idx)


def seconds(name, value):
    """Returns `value` if it is a valid deadline: an int or a float, in seconds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value <= _MOST_SECONDS:
        raise InvalidArgument(f"{name} is {value!r:.100}, need more than 0 and at most {_MOST_SECONDS} seconds")
    return value


def check_tokens(rows, call, topk_weights):
    if not rows.num_tokens == len(call.topk_idx) <= call.max_tokens:
        raise InvalidArgument(f"x has {rows.num_tokens} tokens, topk_idx {len(call.topk_idx)}, "
                              f"num_max_tokens_per_rank is {call.max_tokens}")
    if topk_weights is not None:
        cpu_array(topk_weights, "topk_weights", (torch.float32,), tuple(call.topk_idx.shape))


def check_stats(stats, exchange):
    """Returns the statistics, int32 [L], as a numpy array; None if they were not given."""
    if stats is None:
        return None
    return cpu_array(stats, "cumulative_local_expert_recv_stats", (torch.int32,), (exchange.num_local_experts,))
