"""Computes the layout of a dispatch from top-k ids: the ranks that each token goes to, and the counts. All is local.

Shapes use T tokens of this rank, K top-k, E experts, R ranks. Experts are owned in contiguous blocks; when R does not
divide E the first E % R ranks own one more.
"""

import functools

import numpy as np
import torch

from ferry import _core
from ferry.deep_ep.scalars import integer
from ferry.errors import InvalidArgument

CPU = torch.device("cpu")


def read_topk_idx(topk_idx, num_experts=None):
    """Returns topk_idx, int64 or int32 [T, K], as a numpy array. Raises ferry.InvalidArgument for other tensors, and,
    with num_experts, for ids outside -1 to num_experts - 1."""
    ids = cpu_array(topk_idx, "topk_idx", (torch.int64, torch.int32), (None, None))
    if num_experts is not None and ids.size and not -1 <= ids.min() <= ids.max() < num_experts:
        raise InvalidArgument(f"topk_idx has ids from {ids.min()} to {ids.max()}, need -1 to {num_experts - 1}")
    return ids


def cpu_array(tensor, name, dtypes, shape):
    """Returns `tensor` as a numpy array, without a copy. Raises ferry.InvalidArgument unless it is contiguous, on the
    CPU, and has one of the dtypes and the shape (a tuple; None: any extent)."""
    return check_tensor(tensor, name, dtypes, shape).numpy()


def check_tensor(tensor, name, dtypes, shape, device=CPU):
    """Returns `tensor` without a gradient. Raises ferry.InvalidArgument unless it is contiguous, on the device, and has
    one of the dtypes and the shape (a tuple; None: any extent)."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{name} is {describe(tensor)}, need a torch.Tensor")
    tensor = _core.with_memory(tensor, name)
    have = tensor.shape
    fits = have == shape or (len(have) == len(shape) and all(want in (None, got) for want, got in zip(shape, have)))
    if not fits or tensor.dtype not in dtypes or tensor.device != device or not tensor.is_contiguous():
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise InvalidArgument(f"{name} is {describe(tensor)}, need a contiguous {_names(dtypes)} [{wanted}] on "
                              f"{name_of(device)}")
    return tensor.detach() if tensor.requires_grad else tensor


def name_of(device):
    """Returns the name of a device, for error messages."""
    return "the CPU" if device == CPU else str(device)


def describe(tensor):
    """Returns the dtype, shape and device of a tensor, or the type of anything else, as text for error messages."""
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    contiguous = "" if tensor.is_contiguous() else ", not contiguous"
    return f"{_names([tensor.dtype])} {list(tensor.shape)} on {tensor.device}{contiguous}"


def _names(dtypes):
    return " or ".join(str(dtype).replace("torch.", "") for dtype in dtypes)


@functools.lru_cache(maxsize=64)
def owners(num_experts, num_ranks):
    """Returns an array [E + 1]. Entry e + 1 is the rank that owns expert e; entry 0, for id -1, is R."""
    even, extra = divmod(num_experts, num_ranks)
    blocks = [even + (rank < extra) for rank in range(num_ranks)]
    return np.concatenate([[num_ranks], np.repeat(np.arange(num_ranks), blocks)])


def token_ranks(topk_idx, num_experts, num_ranks):
    """Returns (whether each token goes to each rank, bool [T, R]; tokens that go to each rank, int32 [R]; entries of
    each expert, int32 [E]; whether all ids are valid). An id that names no expert counts as -1. topk_idx is a tensor
    that read_topk_idx accepts."""
    in_rank = torch.empty((topk_idx.shape[0], num_ranks), dtype=torch.bool)
    per_rank, per_expert = torch.empty(num_ranks, dtype=torch.int32), torch.empty(num_experts, dtype=torch.int32)
    return in_rank, per_rank, per_expert, _core.token_ranks(topk_idx, in_rank, per_rank, per_expert)


def nodes_of(mask, node_starts):
    """Returns bool [T, nodes]: whether each token goes to any rank of each node."""
    return np.logical_or.reduceat(mask, node_starts, axis=1)


def dispatch_layout(topk_idx, num_experts, num_ranks, node_starts):
    """Returns the values of Buffer.get_dispatch_layout, except the event."""
    read_topk_idx(topk_idx)
    num_experts = integer("num_experts", num_experts, 1)
    in_rank, per_rank, per_expert, known = token_ranks(topk_idx, num_experts, num_ranks)
    if not known:
        read_topk_idx(topk_idx, num_experts)  # says which
    per_node = None
    if len(node_starts) > 1:
        per_node = torch.from_numpy(nodes_of(in_rank.numpy(), node_starts).sum(axis=0, dtype=np.int32))
    return per_rank, per_node, per_expert, in_rank
