"""deep_ep.utils.refs: simple, slow reference versions of dispatch and combine for tests, over the default process
group.

R ranks, L = E / R experts of a rank, T tokens of this rank, M most tokens of a rank, K top-k, H hidden, N received
rows.
"""

import math
from typing import Optional, Tuple, Union

import torch
import torch.distributed as dist

from ferry.deep_ep.beside.envs import get_global_seed

_GROUP = 128


def _sent_and_received(mask):
    """Returns (the tokens that are sent, ordered by destination rank; how many are sent to each rank; how many are
    received from each rank). The mask is bool [T, R]. Collective."""
    rank, token = mask.t().nonzero(as_tuple=True)
    outgoing = torch.bincount(rank, minlength=mask.shape[1])
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing)
    return token, outgoing.tolist(), incoming.tolist()


def _exchanged(rows, token, outgoing, incoming):
    data = rows[token].contiguous()
    as_bytes = data.view(len(data), -1).view(torch.uint8) if data.numel() else data.new_empty(0, dtype=torch.uint8)
    width = rows[0].numel() * rows.element_size() if len(rows) else math.prod(rows.shape[1:]) * rows.element_size()
    received = torch.empty(sum(incoming), width, dtype=torch.uint8, device=rows.device)
    dist.all_to_all_single(received, as_bytes.reshape(-1, width), incoming, outgoing)
    return received.view(rows.dtype).view(len(received), *rows.shape[1:])


def dispatch(x: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], topk_idx: torch.Tensor,
             topk_weights: Optional[torch.Tensor], num_max_tokens_per_rank: int, num_experts: int):
    """Sends each token once to every rank that owns one of its experts. Received rows are ordered by source rank, then
    token.

    Returns (recv_x; recv_topk_idx, with local ids, or -1 for experts of other ranks; recv_topk_weights, the weights of
    all K entries; recv_src_token_idx int32 [N], source rank * M + token; num_recv_tokens_per_rank int32 [R]).
    """
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    if num_experts % num_ranks or topk_weights is None:
        raise ValueError(f"refs.dispatch: {num_experts} experts on {num_ranks} ranks, weights "
                         f"{'given' if topk_weights is not None else 'missing'}: need even shares and weights")
    each = num_experts // num_ranks
    owners = torch.where(topk_idx >= 0, topk_idx // each, -1)
    token, outgoing, incoming = _sent_and_received((owners.unsqueeze(2) == torch.arange(num_ranks)).any(1))

    def moved(rows):
        return _exchanged(rows, token, outgoing, incoming)

    recv_x = tuple(map(moved, x)) if isinstance(x, tuple) else moved(x)
    ids = moved(topk_idx) - rank * each
    numbers = rank * num_max_tokens_per_rank + torch.arange(len(topk_idx), dtype=torch.int32)
    return (recv_x, torch.where((ids >= 0) & (ids < each), ids, -1), moved(topk_weights), moved(numbers),
            torch.tensor(incoming, dtype=torch.int32))


def generate_pre_combine_data(src_token_global_idx: torch.Tensor, num_max_tokens_per_rank: int, num_topk: int,
                              hidden: int):
    """Returns bfloat16 [n, K, H], the same on every rank: sin(s (h + 1) + sin(seed)), where s in (0, 1] differs between
    the entries of the tokens with these numbers."""
    total = dist.get_world_size() * num_max_tokens_per_rank * num_topk
    entry = src_token_global_idx.long().unsqueeze(1) * num_topk + torch.arange(num_topk)
    s = ((entry * 131071 % total + 1).to(torch.float32) / total).unsqueeze(2)
    h = torch.arange(1, hidden + 1, dtype=torch.float32)
    return torch.sin(s * h + math.sin(get_global_seed())).to(torch.bfloat16)


def ordered_accumulate(data: torch.Tensor, initial_value: Optional[torch.Tensor] = None):
    """Returns the sum of data [n, K, H] over ascending k, [n, H]. It begins with initial_value, is computed in float32,
    and is rounded once to the type of data."""
    total = torch.zeros(data.shape[0], data.shape[2], dtype=torch.float32)
    total = total if initial_value is None else total + initial_value.float()
    for k in range(data.shape[1]):
        total = total + data[:, k].float()
    return total.to(data.dtype)


def _reduced(y, group_of, num_groups):
    """Adds the entries of a token that are in the same group, in k order. The rounded sum is stored at the highest
    column of the group; the other columns of the group are zeros."""
    out = torch.zeros_like(y)
    for group in range(num_groups):
        here = group_of == group
        total = ordered_accumulate(torch.where(here.unsqueeze(2), y, torch.zeros((), dtype=y.dtype)))
        token = here.any(1).nonzero().squeeze(1)
        last = y.shape[1] - 1 - here.flip(1).int().argmax(1)
        out[token, last[token]] = total[token]
    return out


def combine(y: torch.Tensor, topk_idx: torch.Tensor, num_scaleout_ranks: int, num_scaleup_ranks: int, num_experts: int,
            bias=None, reduce_in_local: bool = True, reduce_in_scaleup: bool = True):
    """Returns the result of combine for the entries y [T, K, H]. With reduce_in_local the entries of each rank are
    summed first, and with reduce_in_scaleup then those of each node; these sums are rounded to y's type. At the end the
    biases and the K columns are added in float32, and the sum is rounded once."""
    if reduce_in_scaleup and not reduce_in_local:
        raise ValueError("refs.combine: a node adds the sums of its ranks: reduce_in_scaleup needs reduce_in_local")
    num_ranks = num_scaleout_ranks * num_scaleup_ranks
    owner = torch.where(topk_idx >= 0, topk_idx // (num_experts // num_ranks), -1)
    y = torch.where((owner >= 0).unsqueeze(2), y, torch.zeros((), dtype=y.dtype))
    if reduce_in_local:
        y = _reduced(y, owner, num_ranks)
    if reduce_in_scaleup:
        y = _reduced(y, torch.where(owner >= 0, owner // num_scaleup_ranks, -1), num_scaleout_ranks)
    biases = bias if isinstance(bias, (tuple, list)) else (bias,)
    total = torch.zeros(y.shape[0], y.shape[2], dtype=torch.float32)
    for each in biases:
        total = total if each is None else total + each.float()
    return ordered_accumulate(y, total)
