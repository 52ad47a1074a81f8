"""Redundant experts get their weights from the owners of the experts before a batch, and return their gradients to the
owners after it.

Both transfers are a dispatch, with one row for each expert or for each slot. L experts of a rank, n slots of a rank for
experts of other ranks, R ranks.
"""

import hashlib

import numpy as np
import torch

from ferry.deep_ep.events import overlap
from ferry.deep_ep.layout import cpu_array, describe
from ferry.deep_ep.scalars import FEWEST_SMS, MOST_TOPK, rounded_up
from ferry.errors import InvalidArgument
from ferry.views import need_all_ranks

_UNIT = 32  # the bytes of an expert's weights are a multiple of this


class BufferAllocator:
    """Makes tensors that have no memory yet (on the device meta). The buffer that is made with this allocator gives
    them memory."""

    def __init__(self):
        self._tensors, self.num_bytes, self.materialized = [], 0, False

    def allocate(self, shape, dtype):
        """Returns a tensor that gets its memory when this allocator is given to a buffer."""
        if self.materialized:
            raise InvalidArgument("this BufferAllocator was given to a buffer: its tensors have their memory")
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self._tensors.append(tensor)
        self.num_bytes += rounded_up(tensor.numel() * tensor.element_size(), _UNIT)
        return tensor

    def materialize(self):
        """Gives the tensors their memory, filled with zeros. The buffer calls it."""
        if self.materialized:
            raise InvalidArgument("this BufferAllocator was given to another buffer already")
        storage, begin = torch.zeros(self.num_bytes, dtype=torch.uint8), 0
        for tensor in self._tensors:
            num_bytes = tensor.numel() * tensor.element_size()
            torch.utils.swap_tensors(tensor, storage[begin:begin + num_bytes].view(tensor.dtype).view(tensor.shape))
            begin += rounded_up(num_bytes, _UNIT)
        self._tensors, self.materialized = [], True


class RedundantExperts:
    """The methods of EPBuffer for redundant experts, which balance load. They need self.exchanges and deadline."""

    def lb_get_theoretical_num_sms(self):
        """Returns 4, the fewest that DeepEP recommends. No SM is used: the calling thread moves the bytes."""
        return FEWEST_SMS

    def lb_prefetch_weights(self, redundant_expert_weights, expert_weights, redundancy_mapping, num_sms=0,
                            previous_event=None):
        """Fills redundant_expert_weights [n, ...] with the weights of the experts that the mapping names.

        expert_weights [L, ...] has the weights of this rank's experts; those of one expert are a multiple of 32 bytes.
        Both arguments may also be lists of the same length. redundancy_mapping int32 [R, n] is equal on all ranks:
        entry [r, c] is the expert in slot c of rank r, which must not be an expert of rank r, or -1. Slots with -1 are
        not written. Returns an EventOverlap. Collective.
        """
        need_all_ranks(self.exchanges.group)
        try:
            pairs = _pairs(redundant_expert_weights, expert_weights)
            plan = _Plan(redundancy_mapping, self.exchanges.group, len(pairs[0][0]), len(pairs[0][1]))
            for slots, owned in pairs:
                _check_weights(slots, owned, plan)
        except Exception as error:
            self.exchanges.refuse(error)
        sizes = tuple((f"bytes_of_weight_{i}", _row_bytes(owned)) for i, (_, owned) in enumerate(pairs))
        self.exchanges.agree(0, (*plan.key, *sizes))
        for slots, owned in pairs:
            self._prefetch(slots, owned, plan)
        return overlap()

    def _prefetch(self, slots, owned, plan):
        ranks_of, group = plan.ranks_of(), self.exchanges.group
        top_k = min(group.size, MOST_TOPK)
        mine = range(plan.num_owned * group.rank, plan.num_owned * (group.rank + 1))
        parts = [(e - mine.start, ranks[i:i + top_k]) for e in mine for ranks in [ranks_of.get(e, [])]
                 for i in range(0, len(ranks), top_k)]
        rows_of = [0] * group.size
        for expert, ranks in ranks_of.items():
            rows_of[expert // plan.num_owned] += -(-len(ranks) // top_k)
        most = max(rows_of)
        if most == 0:
            return
        ids = torch.full((len(parts), top_k), -1, dtype=torch.int32)
        for row, (_, ranks) in enumerate(parts):
            ids[row, :len(ranks)] = torch.tensor(ranks, dtype=torch.int32)
        data = owned.detach().reshape(plan.num_owned, -1).view(torch.uint8)[[e for e, _ in parts]]
        exchange = self.exchanges.hold(most, (("dtype", "uint8"), ("hidden", data.shape[1]), ("layout", "rank_major"),
                                              ("num_experts", group.size), ("top_k", top_k)))
        received = exchange.dispatch(data, ids, deadline=self.deadline)
        wanted = sorted({e for e in plan.mapping[group.rank].tolist() if e >= 0})  # received rows are in this order
        out = slots.detach().reshape(len(slots), -1).view(torch.uint8)
        for slot, expert in enumerate(plan.mapping[group.rank].tolist()):
            if expert >= 0:
                out[slot] = received.rows[wanted.index(expert)]

    def lb_reduce_grads(self, redundant_expert_grads, expert_grads, redundancy_mapping, num_sms=0, previous_event=None):
        """Adds redundant_expert_grads float32 [n, m] of all ranks to expert_grads float32 [L, m] of the owners, in the
        order of ranks, then slots.

        redundancy_mapping is that of lb_prefetch_weights. redundant_expert_grads is not changed. Returns an
        EventOverlap. Collective.
        """
        need_all_ranks(self.exchanges.group)
        try:
            given, owned = redundant_expert_grads, expert_grads
            cpu_array(given, "redundant_expert_grads", (torch.float32,), (None, None))
            cpu_array(owned, "expert_grads", (torch.float32,), (None, given.shape[1]))
            group = self.exchanges.group
            plan = _Plan(redundancy_mapping, group, len(given), len(owned))
        except Exception as error:
            self.exchanges.refuse(error)
        self.exchanges.agree(0, (*plan.key, ("gradients", given.shape[1])))
        if (plan.mapping < 0).all():
            return overlap()
        experts = plan.mapping[group.rank]
        ids = torch.from_numpy(np.where(experts >= 0, experts // plan.num_owned, -1).astype(np.int32)).view(-1, 1)
        exchange = self.exchanges.hold(len(given), (
            ("dtype", "float32"), ("hidden", given.shape[1]), ("layout", "rank_major"), ("num_experts", group.size),
            ("top_k", 1)))
        received = exchange.dispatch(given.detach(), ids, deadline=self.deadline)
        for row, (source, slot, _) in zip(received.rows, received.sources.tolist()):
            owned[plan.mapping[source, slot] - group.rank * plan.num_owned] += row
        return overlap()


class _Plan:
    """A checked redundancy_mapping; num_owned: L."""

    def __init__(self, mapping, group, num_slots, num_owned):
        self.mapping = cpu_array(mapping, "redundancy_mapping", (torch.int32,), (group.size, num_slots)).copy()
        self.num_owned = num_owned
        if self.mapping.size and not -1 <= self.mapping.min() <= self.mapping.max() < num_owned * group.size:
            raise InvalidArgument(f"redundancy_mapping has experts from {self.mapping.min()} to {self.mapping.max()}, "
                                  f"need -1 to {num_owned * group.size - 1}")
        own = (self.mapping >= 0) & (self.mapping // max(num_owned, 1) == np.arange(group.size)[:, None])
        if own.any():
            rank, slot = np.argwhere(own)[0]
            raise InvalidArgument(f"redundancy_mapping has expert {self.mapping[rank, slot]} in slot {slot} of rank "
                                  f"{rank}, which owns it")
        digest = hashlib.blake2b(self.mapping.tobytes(), digest_size=8).hexdigest()
        self.key = (("redundancy_mapping", digest), ("experts_of_a_rank", num_owned))

    def ranks_of(self):
        """Returns {expert: the ranks that have a slot for it, ascending}."""
        found = {}
        for rank, experts in enumerate(self.mapping):
            for expert in sorted(set(experts[experts >= 0].tolist())):
                found.setdefault(expert, []).append(rank)
        return found


def _pairs(slots, owned):
    slots, owned = ([each] if isinstance(each, torch.Tensor) else list(each) for each in (slots, owned))
    if len(slots) != len(owned) or not slots or not all(isinstance(t, torch.Tensor) and t.dim() for t in slots + owned):
        raise InvalidArgument("lb_prefetch_weights takes a tensor and a tensor, or as many of both: not "
                              f"{len(slots)} and {len(owned)}")
    return list(zip(slots, owned))


def _row_bytes(tensor):
    return tensor[0].numel() * tensor.element_size() if len(tensor) else 0


def _check_weights(slots, owned, plan):
    for tensor, rows in ((slots, plan.mapping.shape[1]), (owned, plan.num_owned)):
        if len(tensor) != rows or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise InvalidArgument(f"weights are {describe(tensor)}, need {rows} contiguous experts on the CPU")
    size = _row_bytes(owned)
    if size % _UNIT or (len(slots) and _row_bytes(slots) != size):
        raise InvalidArgument(f"an expert's weights have {size} bytes and a slot {_row_bytes(slots)}: need the same "
                              f"multiple of {_UNIT}")
