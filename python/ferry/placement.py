"""Places replicas of busy experts on ranks so that ranks have equal work, and moves their weights.

    placement = ferry.placement.balance(loads, num_replicas=288, num_ranks=8)   # [experts] tokens of each expert
    exchange = group.exchange(..., **placement.settings())                      # top-k ids stay logical
    weights = ferry.placement.move(group, weights, old, placement)              # each rank gets its new experts

Top-k ids name *logical* experts. A *physical* expert is one copy of a logical expert, in a slot of a rank; rank r holds
slots [r * L, (r + 1) * L) of num_replicas = R * L. In a view of the group that lacks ranks (Group.survive) their slots
count as empty, in every placement that a call is given. rebalance_experts is EPLB, a published algorithm, with the same
names, shapes and results. src/routing/balance.cc implements its steps; `ferry bench --rebalance` uses them too. Needs
torch.
"""

import functools
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

import ferry
from ferry import _core
from ferry.views import keeping_owners

__all__ = ["Balancer", "Placement", "agree", "balance", "balanced_packing", "blocks", "in_view", "move",
           "rebalance_experts", "replicate_experts", "sum_copies", "table_of"]

MOST_COPIES = 32  # the most copies of an expert that one dispatch makes: the limit of top_k
ROW_BYTES = 1 << 14  # bytes of the rows that weights are sent in; the last row is padded


def _layers(found):
    """Turns a pair of lists for each layer into two int64 tensors [layers, N]."""
    return tuple(torch.tensor(part, dtype=torch.int64) for part in zip(*found))


def balanced_packing(weight, num_packs):
    """Packs items of `weight` [layers, N] into num_packs packs of N / num_packs items each, the heaviest first, each
    into the lightest pack that has room. Returns (pack, rank_in_pack), both int64 [layers, N]. Raises InvalidArgument
    when num_packs does not divide N."""
    return _layers(_core.pack_evenly(row, num_packs) for row in weight.float().tolist())


def replicate_experts(weight, num_phy):
    """Gives each of num_phy - N copies to the expert of `weight` [layers, N] that then has the largest load per copy.
    Returns int64 tensors: phy2log [layers, num_phy], the expert of each copy; rank [layers, num_phy], its number among
    the copies of the expert; logcnt [layers, N], the number of copies. Raises InvalidArgument when num_phy is less than
    N."""
    phy2log, rank = _layers(_core.replicate(row, num_phy) for row in weight.float().tolist())
    return phy2log, rank, _counts(phy2log, weight.shape[1])


def _counts(phy2log, num_experts):
    return torch.zeros(len(phy2log), num_experts, dtype=torch.int64).scatter_add_(1, phy2log, torch.ones_like(phy2log))


def rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_gpus):
    """EPLB: the placement of num_replicas copies of the experts, from their loads `weight` [layers, E].

    With num_groups divisible by num_nodes, groups of experts are packed onto nodes, copies are made within a node and
    packed onto its ranks (num_gpus of all nodes); else copies are made and packed over all ranks. Returns int64
    (phy2log [layers, num_replicas], log2phy [layers, E, X] padded with -1, logcnt [layers, E]), X = num_replicas - E +
    1. Raises InvalidArgument for counts that do not divide."""
    layers, experts = weight.shape
    phy2log, copies = _layers(_core.balance(row, num_replicas, num_groups, num_nodes, num_gpus)
                              for row in weight.float().tolist())
    log2phy = torch.full((layers, experts, num_replicas - experts + 1), -1)
    slots = torch.arange(num_replicas).expand(layers, -1)
    log2phy.view(layers, -1).scatter_(-1, phy2log * log2phy.shape[-1] + copies, slots)
    return phy2log, log2phy, _counts(phy2log, experts)


class Placement(NamedTuple):
    """The logical expert in each slot, for one layer."""

    experts: tuple  # [num_replicas] of logical experts; -1: an empty slot
    num_ranks: int

    @property
    def per_rank(self):
        """The number L of slots of a rank."""
        return len(self.experts) // self.num_ranks

    def of_rank(self, rank):
        """Returns the logical experts that a rank holds, [L], in the order of its slots."""
        return self.experts[rank * self.per_rank:(rank + 1) * self.per_rank]

    def on(self, ranks):
        """Returns the placement without the copies on all other ranks, such as those that a view of the group lacks.
        Raises InvalidArgument with the experts that have no copy on `ranks`."""
        kept = tuple(expert if slot // self.per_rank in ranks else -1 for slot, expert in enumerate(self.experts))
        lost = sorted(set(self.experts).difference(kept))
        if lost:
            raise ferry.InvalidArgument(f"experts {lost} have no copy on the ranks {list(ranks)}: if these are the "
                                        "ranks that remain, load the weights of the experts from a checkpoint, into "
                                        "a layer of a new group")
        return Placement(kept, self.num_ranks)

    def slots(self):
        """Returns for each logical expert the list of its slots."""
        found = [[] for _ in range(max(self.experts) + 1)]
        for slot, expert in enumerate(self.experts):
            if expert >= 0:
                found[expert].append(slot)
        return found

    def settings(self, replica_choice="by_token"):
        """Returns settings of Group.exchange: num_experts, replicas and replica_choice. Top-k ids then name logical
        experts. A source spreads its tokens over the copies of an expert, or with "by_table" sends them to the copies
        in table()."""
        return {"num_experts": len(self.experts), "replicas": self.slots(), "replica_choice": replica_choice}

    def table(self, rank, active_ranks):
        """Returns int32 [experts], the replica_table of a dispatch of `rank`: for each expert one of its copies on
        active_ranks. Successive source ranks get successive copies. Raises InvalidArgument when no active rank has a
        copy of an expert."""
        return torch.tensor(_copies_on(active_ranks, rank, self.slots(), self.per_rank), dtype=torch.int32)

    def imbalance(self, loads):
        """Returns the load of the busiest rank divided by the mean load of the ranks. The copies of an expert share its
        load, one of `loads` [E], equally."""
        slots = self.slots()
        if len(loads) != len(slots):
            raise ferry.InvalidArgument(f"{len(loads)} loads of {len(slots)} experts")
        share = [float(load) / len(copies) for load, copies in zip(loads, slots)]
        of_ranks = [sum(share[e] for e in self.of_rank(rank) if e >= 0) for rank in range(self.num_ranks)]
        total = sum(of_ranks)
        return max(of_ranks) * self.num_ranks / total if total > 0 else 1.0


def _copies_on(active_ranks, rank, slots, per_rank):
    """Returns for each expert which of its copies gets the tokens of `rank`, as an index into slots[expert]. Raises
    InvalidArgument when no active rank has a copy of an expert."""
    chosen = []
    for expert, copies in enumerate(slots):
        here = [copy for copy, slot in enumerate(copies) if slot // per_rank in active_ranks]
        if not here:
            raise ferry.InvalidArgument(f"expert {expert} has no copy on the active ranks {list(active_ranks)}")
        chosen.append(here[rank % len(here)])
    return chosen


def table_of(group, config, active_ranks):
    """Returns Placement.table() of this rank for an exchange whose config has the settings of a placement. With
    active_ranks None all ranks of the view are active. The tensor is cached for each set of ranks, so the caller must
    not change it. Raises InvalidArgument as table() does, and unless each rank of the exchange has equally many
    experts, in the order of the ranks."""
    in_order = config["expert_ranks"] in ([], list(range(group.size)))
    placed = config["expert_rank"] or not in_order or config["num_shared_ranks"]
    if config["num_experts"] % group.size or placed:
        raise ferry.InvalidArgument("a table of copies needs equally many experts on each rank, in the order of "
                                    "the ranks")
    active = tuple(group.view[1] if active_ranks is None else active_ranks)
    return _kept_table(active, group.rank, tuple(map(tuple, config["replicas"])), config["num_experts"] // group.size)


@functools.lru_cache
def _kept_table(*arguments):
    return torch.tensor(_copies_on(*arguments), dtype=torch.int32)


def blocks(num_experts, num_ranks):
    """Returns the placement without replicas, in which rank r holds experts [r * L, (r + 1) * L). Raises
    InvalidArgument when num_ranks does not divide num_experts."""
    if num_experts % num_ranks:
        raise ferry.InvalidArgument(f"{num_experts} experts on {num_ranks} ranks: need equally many on each")
    return Placement(tuple(range(num_experts)), num_ranks)


def balance(loads, num_replicas, num_ranks, *, num_groups=1, num_nodes=1):
    """Returns the Placement that rebalance_experts computes for the loads [E] of one layer."""
    loads = torch.as_tensor(loads, dtype=torch.float32).reshape(1, -1)
    experts = rebalance_experts(loads, num_replicas, num_groups, num_nodes, num_ranks)[0][0]
    return Placement(tuple(experts.tolist()), num_ranks)


def _balance_on(ranks, num_ranks, loads, num_replicas, options):
    """Returns the result of balance() for `ranks`, some of num_ranks ranks. The slots of the other ranks are empty."""
    found = balance(loads, num_replicas, len(ranks), **options)
    empty = (-1,) * found.per_rank
    held = [found.of_rank(ranks.index(rank)) if rank in ranks else empty for rank in range(num_ranks)]
    return Placement(sum(held, ()), num_ranks)


def _moves(old, new):
    """Returns [(slot in `old` that sends, slots of `new` that receive)], in the order of the senders' slots. A rank
    that already holds an expert does not receive it. Among the ranks that hold an expert, the one with the fewest
    experts to send sends it."""
    holders, wanted = old.slots(), {}
    for slot, expert in enumerate(new.experts):
        if expert < 0:
            continue
        if expert >= len(holders) or not holders[expert]:
            raise ferry.InvalidArgument(f"expert {expert} of the new placement is on no rank of the old one")
        if expert not in old.of_rank(slot // new.per_rank):
            wanted.setdefault(expert, []).append(slot)
    to_send, moves = [0] * old.num_ranks, []
    for expert, slots in wanted.items():
        sender = min(holders[expert], key=lambda slot: (to_send[slot // old.per_rank], slot))
        for part in _parts(slots):
            moves.append((sender, part))
            to_send[sender // old.per_rank] += 1
    return sorted(moves)


def _parts(slots):
    """Divides the slots of copies of an expert into lists for one dispatch each."""
    return [slots[first:first + MOST_COPIES] for first in range(0, len(slots), MOST_COPIES)]


_AGREED_BYTES = 1 << 12  # bytes of each rank, as an all_gather needs equal lengths


def _brief(text):
    """Returns the text if it has at most 100 characters, or else its checksum."""
    return text if len(text) <= 100 else f"one with checksum {zlib.crc32(text.encode()):08x}"


def agree(group, check, said):
    """Calls check() on all ranks, and compares `said`, a dict of values by their names, between the ranks. Returns the
    result of check() if no check() raised and `said` is equal on all ranks. Collective. Raises what check() raised on
    this rank, PeerRejected if check() raised on other ranks only, and Mismatch if `said` differs."""
    refusal = found = None
    try:
        found = check()
    except Exception as error:
        refusal = error
    own = {name: _brief(repr(value)) for name, value in said.items()}
    text = json.dumps([refusal and str(refusal)[:500], own], ensure_ascii=False).encode(errors="replace")
    gathered = group.all_gather(text.ljust(_AGREED_BYTES))  # empty for a rank that the view lacks
    of_ranks = {rank: json.loads(each) for rank, each in enumerate(gathered) if each}
    if refusal:
        raise refusal
    first = min(of_ranks)
    for rank, (why, theirs) in of_ranks.items():
        if why:
            raise ferry.PeerRejected(f"rank {rank} refused: {why}")
        for name in own:
            if theirs[name] != of_ranks[first][1][name]:
                raise ferry.Mismatch(f"{name}: rank {rank} has {theirs[name]}, rank {first} {of_ranks[first][1][name]}")
    return found


def _agreed_moves(group, weights, old, new):
    """Returns both placements on the ranks of the view and the _moves() of these weights, after all ranks have agreed
    on the placements, the dtype and the shape of an expert. Collective."""
    return agree(group, lambda: _checked_moves(group, weights, old, new),
                 {"old placement": old, "new placement": new, "dtype": getattr(weights, "dtype", None),
                  "shape of an expert": tuple(getattr(weights, "shape", ())[1:])})


def in_view(group, *placements):
    """Returns the placements on the ranks of the view. Raises InvalidArgument for one that does not fit the group, and
    for an expert that has copies on lost ranks only."""
    for placement in placements:
        if placement.num_ranks != group.size or len(placement.experts) % group.size:
            raise ferry.InvalidArgument(f"a placement of {len(placement.experts)} slots on {placement.num_ranks} ranks "
                                        f"does not fit a group of {group.size}")
    return [placement.on(group.view[1]) for placement in placements]


def _checked_moves(group, weights, old, new):
    old, new = in_view(group, old, new)
    if not torch.is_tensor(weights) or weights.dim() == 0:
        raise ferry.InvalidArgument(f"weights are no tensor of experts but {type(weights).__name__}")
    if len(weights) != old.per_rank:
        raise ferry.InvalidArgument(f"weights of {len(weights)} experts, the old placement has {old.per_rank} here")
    return old, new, _moves(old, new)


def move(group, weights, old, new):
    """Moves the weights of experts after a change of placement. `weights` [L, ...] are those of this rank's slots in
    `old`. Returns the weights of its slots in `new`, bit for bit. Collective.

    Between nodes each row is sent once to each node. In a view that lacks ranks their slots count as empty: the ranks
    that remain send and receive. The call needs memory for the result, and for the experts of one dispatch: the one
    that this rank sends, and those that the other ranks send to this rank.
    Raises InvalidArgument for placements that do not fit the group, the weights or each other, or that have experts on
    lost ranks only; PeerRejected where another rank raises InvalidArgument; Mismatch for placements or weights that
    differ between ranks; and the errors of Exchange.dispatch."""
    old, new, moves = _agreed_moves(group, weights, old, new)
    moved = weights.new_empty(new.per_rank, *weights.shape[1:])
    held = old.of_rank(group.rank)
    for slot, expert in enumerate(new.of_rank(group.rank)):
        if expert in held:
            moved[slot] = weights[held.index(expert)]
    size = weights[0].numel() * weights.element_size()
    if not moves or size == 0:
        return moved
    by_rank = [[m for m in moves if m[0] // old.per_rank == rank] for rank in range(group.size)]
    parcels = [(weights[sender % old.per_rank], slots) for sender, slots in by_rank[group.rank]]
    top_k = max(len(slots) for _, slots in moves)
    for slot, came in _carry(group, parcels, max(map(len, by_rank)), len(new.experts), top_k, size):
        _bytes_of(moved[slot])[:] = came[0]
    return moved


def _carry(group, parcels, turns, num_slots, top_k, size):
    """Makes `turns` dispatches. In each of them every rank sends its next parcel, a pair of a tensor of `size` bytes
    and the slots that receive it. After each dispatch yields pairs (a slot of this rank, uint8 [n, size]): the n
    tensors that the slot received, in the order of their source ranks. Collective."""
    num_rows = -(-size // ROW_BYTES)
    settings = dict(max_tokens=num_rows, hidden=ROW_BYTES, num_experts=num_slots, top_k=top_k, dtype="uint8", depth=1)
    exchange = group.exchange(**keeping_owners(group, settings))
    for turn in range(turns):
        rows, ids = torch.empty(0, ROW_BYTES, dtype=torch.uint8), torch.empty(0, top_k, dtype=torch.int64)
        if turn < len(parcels):
            tensor, slots = parcels[turn]
            rows = torch.zeros(num_rows, ROW_BYTES, dtype=torch.uint8)
            rows.view(-1)[:size] = _bytes_of(tensor)
            ids = torch.tensor(slots + [-1] * (top_k - len(slots))).expand(num_rows, -1).contiguous()
        received = exchange.dispatch(rows, ids)
        parts = received.rows.split(received.handle.tokens_per_expert.tolist())
        for slot, part in enumerate(parts):
            if len(part):
                yield slot, part.reshape(len(part) // num_rows, -1)[:, :size]


def sum_copies(group, gradients, placement):
    """Adds the gradients of the copies of each expert. `gradients` [L, ...] are those of this rank's slots. Returns
    [L, ...] of the same dtype, in which each slot has the sum over all copies of its expert. Collective.

    Sums are in float32 (of float64 in float64), in the same order on all ranks, so the copies stay equal bit for bit.
    Each copy is sent to all copies of its expert, in each dispatch one copy of each rank to at most MOST_COPIES slots.
    Raises the errors of move().
    """
    _, placement, _ = _agreed_moves(group, gradients, placement, placement)
    slots, summed = placement.slots(), gradients.clone()
    copied = [[slot for slot, expert in enumerate(placement.of_rank(rank)) if expert >= 0 and len(slots[expert]) > 1]
              for rank in range(group.size)]
    size = gradients[0].numel() * gradients.element_size()
    if size == 0 or not any(copied):
        return summed
    held = placement.of_rank(group.rank)
    turns = max(sum(len(_parts(slots[placement.of_rank(rank)[slot]])) for slot in copied[rank])
                for rank in range(group.size))  # fmt: skip
    totals = {slot: torch.zeros_like(gradients[slot], dtype=torch.promote_types(gradients.dtype, torch.float32))
              for slot in copied[group.rank]}
    parcels = [(gradients[slot], part) for slot in totals for part in _parts(slots[held[slot]])]
    most = min(max(map(len, slots)), MOST_COPIES)
    for slot, came in _carry(group, parcels, turns, len(placement.experts), most, size):
        for one in came:
            totals[slot] += one.view(gradients.dtype).view_as(totals[slot])
    for slot, total in totals.items():
        summed[slot] = total
    return summed


def _bytes_of(tensor):
    """Returns the bytes of a tensor: a view of a contiguous tensor, or else a copy."""
    return tensor.contiguous().view(-1).view(torch.uint8)


class Balancer:
    """Counts the rows of each expert, and computes a better placement in a thread.

        balancer = Balancer(group, placement)
        ...
        balancer.count(received.handle)      # after each dispatch of some steps
        balancer.begin(num_replicas)         # collective: adds up the counts; the placement is computed in a thread
        ...                                  # more steps
        placement = balancer.end()           # equal on all ranks, so that all switch at this step
    """

    def __init__(self, group, placement):
        self.group, self.placement = group, placement
        self._counts = torch.zeros(placement.per_rank, dtype=torch.int64)
        self._found, self._thread = None, ThreadPoolExecutor(1, "ferry-balancer")

    def count(self, handle):
        """Adds the numbers of rows that the experts of this rank received in a dispatch. Does nothing if this rank was
        not active in it."""
        counts = torch.as_tensor(handle.tokens_per_expert)
        if len(counts) > 0:
            self._counts += counts

    def begin(self, num_replicas=None, **options):
        """Adds the counts of all ranks since the last begin() or end(), and starts to compute a placement of
        num_replicas copies on the ranks of the view, in a thread; None: as many for each rank as before. `options` are
        num_groups and num_nodes of balance(). Collective. Raises InvalidArgument when an expert has copies on lost
        ranks only."""
        group, ranks = self.group, self.group.view[1]
        placement, own = self.placement.on(ranks), self._counts.numpy().tobytes()
        gathered = [counts or bytes(len(own)) for counts in group.all_gather(own)]  # empty for a lost rank
        of_slots = torch.frombuffer(bytearray(b"".join(gathered)), dtype=torch.int64).tolist()
        self._counts.zero_()
        loads = [sum(of_slots[slot] for slot in slots) for slots in placement.slots()]
        wanted = num_replicas or placement.per_rank * len(ranks)
        self._found = self._thread.submit(_balance_on, ranks, group.size, loads, wanted, options)

    def end(self):
        """Waits for the computation and returns the new Placement. This object counts for it from now on; counts since
        begin() are dropped, as they are of the slots of the old placement."""
        if self._found is None:
            raise ferry.InvalidArgument("Balancer: end() without a begin() before it")
        self.placement, self._found = self._found.result(), None
        self._counts = torch.zeros(self.placement.per_rank, dtype=torch.int64)
        return self.placement
