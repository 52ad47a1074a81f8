"""Where every entry of every token goes, and the rows of each rank in order. Rules: the design's section 4,
include/ferry/config.h and include/ferry/exchange.h. Imported by dispatched.py and combined.py.

A member is an expert-parallel rank that takes part: an active rank, or a group of tp_size ranks. An entry is one of the
K ids of a token, or behind them one of its shared experts."""

import numpy as np

KNOWN_SETTINGS = set(
    "num_ranks active_ranks max_tokens hidden num_experts top_k type layout expert_alignment expert_capacity "
    "expert_rank wire combine_wire column_major_scales scale_bytes shared_experts shared_ranks shared_rule "
    "zero_experts copy_experts constant_experts replicas replica_choice tp_size groups algorithm node_sums "
    "row_type row_hidden weights_home weighted out_type epsilon per_rank_partials".split()
)


class Routing:
    """Arrays over all entries, by source rank, token and k: rank, member, position, token and k of the source, and the
    weight; `goes_to`, the member that gets it, or -1; `local`, which of its experts; `special`, the special expert
    instead, or -1; `factor_row`, the row of its factors."""

    def __init__(self, case):
        self.case, self.settings = case, case.settings
        unknown = set(case.settings) - KNOWN_SETTINGS
        if unknown:
            raise NotImplementedError(f"settings that this check does not know: {sorted(unknown)}")
        self.tp_size, self.top_k = case.settings["tp_size"], case.settings["top_k"]
        self.num_columns = self.top_k + case.settings["shared_experts"]
        self.is_rank_major = case.settings["layout"] == "rank_major"
        self.num_logical = len(case.settings["replicas"]) or case.settings["num_experts"]
        # The ranks that take part, in the order of sources.
        self.ranks = case.settings["active_ranks"] or list(range(case.settings["num_ranks"]))
        self.num_members = len(self.ranks) // self.tp_size
        self.place_experts()
        self.gather_entries()

    def member_of(self, rank):
        return self.ranks.index(rank) // self.tp_size

    def position_of(self, rank):
        return rank % self.tp_size

    def place_experts(self):
        """`expert_member` and `expert_local` of each expert; `num_local` of each member; `shared_members`."""
        settings = self.settings
        num_all = settings["num_ranks"] // self.tp_size
        first = settings["shared_ranks"]
        blocks = np.array_split(np.arange(settings["num_experts"]), num_all - first) if num_all > first else []
        owner = np.repeat(np.arange(first, num_all), [len(block) for block in blocks])
        if settings["expert_rank"]:
            owner = np.array(settings["expert_rank"])
        number = np.full(num_all, -1)
        number[self.ranks if self.tp_size == 1 else slice(None)] = np.arange(self.num_members)
        self.expert_member = number[owner]
        self.expert_local = np.array([np.sum(owner[:e] == owner[e]) for e in range(len(owner))])
        self.shared_members = np.sort(number[:first][number[:first] >= 0])
        self.num_local = np.bincount(self.expert_member[self.expert_member >= 0], minlength=self.num_members)
        self.num_local[self.shared_members] += 1

    def gather_entries(self):
        columns = {name: [] for name in "rank member position token k goes_to local special factor_row weight".split()}
        for rank in self.ranks:
            num_tokens = int(self.case["num_tokens"][rank])
            ids = self.sent_ids(rank, num_tokens)
            weights = self.case.of_rank("topk_weights", rank)
            routed, shared = self.routed(rank, ids), self.shared(rank, ids)
            told = {name: np.concatenate([routed[name], shared[name]], axis=1) for name in routed}
            told |= {"rank": rank, "member": self.member_of(rank), "position": self.position_of(rank)}
            told |= {"token": np.arange(num_tokens)[:, None], "k": np.arange(self.num_columns)}
            told["weight"] = np.ones((num_tokens, self.num_columns), np.float32)
            told["weight"][:, : self.top_k] = 0 if weights is None else weights
            for name, parts in columns.items():
                parts.append(np.broadcast_to(told[name], (num_tokens, self.num_columns)).ravel())
        self.__dict__ |= {name: np.concatenate(parts) for name, parts in columns.items()}

    def sent_ids(self, rank, num_tokens):
        """[T, K], -1 where not sent."""
        ids = self.case.of_rank("topk_ids", rank)
        ids = np.zeros((0, self.top_k), np.int64) if ids is None else ids
        for name in ("token_mask", "topk_mask"):
            mask = self.case.of_rank(name, rank)
            if mask is not None:
                ids = np.where(mask.reshape(num_tokens, -1) != 0, ids, -1)
        return ids

    def routed(self, rank, ids):
        is_expert = (ids >= 0) & (ids < self.num_logical)
        expert = np.where(is_expert, ids, 0)
        if self.settings["replicas"]:
            counts = np.array([len(instances) for instances in self.settings["replicas"]])
            table = np.full((len(counts), counts.max()), -1)
            for logical, instances in enumerate(self.settings["replicas"]):
                table[logical, : len(instances)] = instances
            expert = table[expert, self.chosen_instance(rank, expert, counts)]
        return {
            "goes_to": np.where(is_expert, self.expert_member[expert], -1),
            "local": self.expert_local[expert],
            "special": np.where(ids >= self.num_logical, ids - self.num_logical, -1),
            "factor_row": self.settings["shared_experts"] + ids,
        }

    def chosen_instance(self, rank, logical, counts):
        choice = self.settings["replica_choice"]
        if choice == "by_table":
            table = self.case.of_rank("replica_table", rank)
            return table[logical]
        number = self.member_of(rank) if choice == "by_rank" else np.arange(len(logical))[:, None]
        return number % counts[logical]

    def shared(self, rank, ids):
        """[T, shared experts]; a token takes part that has an entry."""
        takes_part = (ids >= 0).any(axis=1)
        num_tokens, num_shared = len(ids), self.settings["shared_experts"]
        goes_to = np.full((num_tokens, num_shared), -1)
        if num_shared and len(self.shared_members):
            goes_to = self.shared_member(rank, num_tokens)
            goes_to = np.where(takes_part[:, None], goes_to, -1)
        return {
            "goes_to": goes_to,
            "local": np.where(goes_to >= 0, self.num_local[goes_to] - 1, 0),
            "special": np.full_like(goes_to, -1),
            "factor_row": np.broadcast_to(np.arange(num_shared), goes_to.shape),
        }

    def shared_member(self, rank, num_tokens):
        """[T, shared experts]"""
        member, members = self.member_of(rank), self.shared_members
        num_shared, num_ranks = self.settings["shared_experts"], len(members)
        if self.settings["shared_rule"] == "by_rank":
            per_expert = num_ranks // num_shared
            chosen = members[member % per_expert + np.arange(num_shared) * per_expert]
            return np.broadcast_to(chosen, (num_tokens, num_shared))
        if member in members:
            return np.full((num_tokens, 1), member)
        ends = (np.arange(num_ranks + 1) + member) * num_tokens // num_ranks
        return np.repeat(members, np.diff(ends))[:, None]

    # ---- the rows of one rank

    def distance(self, rank):
        """How far each entry's position is behind that of `rank`, in cyclic order."""
        return (self.position - self.position_of(rank)) % self.tp_size

    def entries_at(self, rank):
        """The entries that come to `rank`, in the order of its rows."""
        here = np.flatnonzero(self.goes_to == self.member_of(rank))
        keys = [self.k[here], self.token[here], self.member[here], self.distance(rank)[here]]
        if not self.is_rank_major:
            keys.append(self.local[here])
        return here[np.lexsort(keys)]

    def counts(self, rank):
        """[tp_size, L, members]: rows of each local expert from each source, my position first."""
        here, num_local = self.entries_at(rank), self.num_local[self.member_of(rank)]
        flat = (self.distance(rank)[here] * num_local + self.local[here]) * self.num_members + self.member[here]
        shape = (self.tp_size, num_local, self.num_members)
        return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)

    def expert_offsets(self, rank):
        """[L + 1]"""
        rows = self.counts(rank).sum(axis=(0, 2))
        if self.settings["layout"] == "padded":
            rows[:] = self.expert_capacity()
        else:
            rows = round_up(rows, self.settings["expert_alignment"])
        return np.concatenate([[0], np.cumsum(rows)])

    def expert_capacity(self):
        return self.settings["expert_capacity"] or self.settings["num_ranks"] * self.settings["max_tokens"]

    def rows_at(self, rank):
        """(entries that come to `rank`, the row of each there, the number of rows)"""
        here = self.entries_at(rank)
        if self.is_rank_major:
            of_one_token = np.stack([self.rank[here], self.token[here]])
            begins = np.any(np.diff(of_one_token, axis=1, prepend=-1) != 0, axis=0)
            return here, np.cumsum(begins) - 1, int(begins.sum())
        offsets, local = self.expert_offsets(rank), self.local[here]
        place_in_expert = np.arange(len(here)) - np.searchsorted(local, local)
        return here, offsets[local] + place_in_expert, int(offsets[-1])


def round_up(numbers, multiple):
    return -(-numbers // multiple) * multiple
