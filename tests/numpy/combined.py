"""What combine must give each rank. Rules: docs/numerics.md, "Combine" and what follows; include/ferry/exchange.h
(CombineArgs). Called by check.py."""

import numpy as np
from number_formats import BITS, F32, from_float32, to_float32
from row_sums import constant_term, norm
from wire_formats import combine_wire


class Combine:
    """Of one case: the rows of each member as they arrive at the sources."""

    def __init__(self, routing):
        self.routing, self.case, self.settings = routing, routing.case, routing.settings
        # row_of[position][entry]: where the entry's row lies on the rank at that position of its member, or -1.
        self.row_of = np.full((routing.tp_size, len(routing.rank)), -1)
        for rank in routing.ranks:
            here, row, _ = routing.rows_at(rank)
            self.row_of[routing.position_of(rank), here] = row

    def rank_at(self, member, position):
        return self.routing.ranks[member * self.routing.tp_size + position]

    def groups(self):
        """[ranks, levels], from the outside in: the last are nodes."""
        groups = np.array(self.settings["groups"])
        straight = self.settings["algorithm"] == "fullmesh" or self.settings["active_ranks"]
        return groups[:, -1:] if straight else groups

    def sums_at_nodes(self):
        return self.settings["node_sums"] != "exact" and len(set(self.groups()[:, -1])) > 1

    def origins(self, rank, mine, level=0):
        """The entries of `rank` among `mine` that were sent, by the group of a level where they are summed."""
        routing, groups = self.routing, self.groups()[:, level]
        sent = mine[routing.goes_to[mine] >= 0]
        owner = np.array(routing.ranks)[routing.goes_to[sent] * routing.tp_size + routing.position[sent]]
        origin = np.array([np.flatnonzero(groups == groups[r])[0] for r in owner], int)
        if self.settings["algorithm"] == "fullmesh":
            origin = np.where(groups[owner] == groups[rank], origin, owner)
        return [sent[origin == lowest] for lowest in np.unique(origin)]

    def positions(self, entry):
        """In the order of addition: the source's own, then the next ones."""
        return (self.routing.position[entry] + np.arange(self.routing.tp_size)) % self.routing.tp_size

    def arrived(self, entries):
        """float32 [len(entries), H']: the group's rows of each, added, through the wire."""
        element_type, wire = self.settings["row_type"], self.settings["combine_wire"]
        elements = np.zeros((len(entries), self.settings["row_hidden"]), BITS[element_type])
        for member in np.unique(self.routing.goes_to[entries]):
            is_here = self.routing.goes_to[entries] == member
            elements[is_here] = self.group_sum(member, entries[is_here])
        if wire != "none" and len(entries):
            _, _, elements = combine_wire(wire, elements, element_type)
        return to_float32(elements, element_type)

    def group_sum(self, member, entries):
        element_type, total = self.settings["row_type"], None
        for position in self.positions(entries[0]):
            rows = self.case.of_rank("expert_rows", self.rank_at(member, position))
            values = to_float32(rows[self.row_of[position, entries]], element_type)
            total = values if total is None else total + values
        return from_float32(total, element_type)

    def brought(self, entries):
        """[len(entries)] or rank_major [len(entries), K]: row_weights of their rows, those of a group added."""
        columns = [self.routing.top_k] if self.routing.is_rank_major else []
        totals = np.zeros((len(entries), *columns), F32)
        for i, entry in enumerate(entries):
            for position in self.positions(entry):
                rank = self.rank_at(self.routing.goes_to[entry], position)
                weights = self.case.of_rank("row_weights", rank)[self.row_of[position, entry]]
                is_own = position == self.routing.position[entry]
                totals[i] = weights if is_own else totals[i] + weights
        return totals


def combined(combine, rank):
    """The outputs of one rank, by the names of the oracle."""
    routing, case, settings = combine.routing, combine.case, combine.settings
    if rank not in routing.ranks:
        return {"out": None, "y": None, "rstd": None, "out_topk_weights": None}
    out_type, num_tokens = settings["out_type"][rank], int(case["num_tokens"][rank])
    acc = np.zeros((num_tokens, settings["row_hidden"]), F32)
    home = np.zeros((num_tokens, routing.top_k), F32)

    def given(name):
        array = case.of_rank(name, rank)
        return np.zeros_like(acc) if array is None else to_float32(array, out_type)

    for name in ("bias_0", "bias_1"):
        acc = acc + given(name)
    mine = np.flatnonzero(routing.rank == rank)
    if combine.sums_at_nodes():
        for here in combine.origins(rank, mine):
            acc, home = add_origin(combine, rank, here, (acc, home))
        mine = mine[routing.goes_to[mine] < 0]
    add_terms(combine, rank, mine, (acc, home))
    acc = acc + given("shared_output")
    told = {"out_topk_weights": home if settings["weights_home"] else None, "y": None, "rstd": None}
    if case.of_rank("residual", rank) is None:
        return told | {"out": from_float32(acc, out_type)}
    gamma = to_float32(case.of_rank("gamma", rank), out_type)
    out, y, rstd = norm(acc + given("residual"), gamma, F32(settings["epsilon"][rank]), out_type)
    return told | {"out": out, "y": y, "rstd": rstd}


def add_terms(combine, rank, mine, totals):
    """Adds the terms of the entries `mine` to `totals`: the sum [T, H'], and the scalars that come home [T, K]."""
    routing, (acc, home) = combine.routing, totals
    partials = Partials(combine) if combine.settings["per_rank_partials"][rank] else None
    for entries in groups(routing, mine):
        tokens, values = routing.token[entries], terms(combine, rank, entries)
        if partials:
            tokens, values = partials.take(entries, values)
        acc[tokens] = acc[tokens] + values
        is_sent = routing.goes_to[entries] >= 0
        if combine.settings["weights_home"]:
            bring_home(combine, entries[is_sent], home)


def add_origin(combine, rank, here, totals):
    """The totals with what comes home from one origin."""
    acc, home = totals
    scalars = np.zeros_like(home) if combine.routing.is_rank_major else home
    sums = sum_of_origin(combine, rank, here, (np.zeros_like(acc), scalars))
    return acc + sums, home + scalars if combine.routing.is_rank_major else scalars


def sum_of_origin(combine, rank, here, totals, level=0):
    """The sum of the entries `here` of one group as it travels: that of the sums of the groups in it, to the nodes."""
    sums, scalars = totals
    if level + 1 == combine.groups().shape[1]:
        add_terms(combine, rank, here, totals)
    else:
        for part in combine.origins(rank, here, level + 1):
            sums = sums + sum_of_origin(combine, rank, part, (np.zeros_like(sums), scalars), level + 1)
    if combine.settings["node_sums"] == "fp32":
        return sums
    row_type = combine.settings["row_type"]
    return to_float32(from_float32(sums, row_type), row_type)


class Partials:
    """The terms of one source, summed by (token, member) until the last of them is taken."""

    def __init__(self, combine):
        self.routing, self.element_type = combine.routing, combine.settings["row_type"]
        self.sums = {}

    def take(self, entries, values):
        """The terms of one k -> the tokens that something is to be added to, and what."""
        tokens, added = [], []
        for entry, value in zip(entries, values):
            token, member = self.routing.token[entry], self.routing.goes_to[entry]
            if member >= 0:
                total = self.sums.get((token, member), np.zeros_like(value)) + value
                self.sums[token, member] = total
                value = to_float32(from_float32(total, self.element_type), self.element_type)
            if member < 0 or entry == self.last(entry):
                tokens.append(token)
                added.append(value)
        return np.array(tokens, int), np.array(added, F32).reshape(len(added), values.shape[1])

    def last(self, entry):
        routing = self.routing
        here = (routing.rank == routing.rank[entry]) & (routing.token == routing.token[entry])
        return np.flatnonzero(here & (routing.goes_to == routing.goes_to[entry])).max()


def groups(routing, mine):
    """The entries of `mine` that have a term, in groups with no token twice, in the order of addition."""
    if routing.is_rank_major:
        for member in range(routing.num_members):
            here = mine[routing.goes_to[mine] == member]
            yield here[np.unique(routing.token[here], return_index=True)[1]]
        mine = mine[routing.goes_to[mine] < 0]
    for k in range(routing.num_columns):
        of_k = mine[routing.k[mine] == k]
        yield of_k[(routing.goes_to[of_k] >= 0) | (routing.special[of_k] >= routing.settings["zero_experts"])]


def terms(combine, rank, entries):
    """float32 [len(entries), H'], weighted."""
    routing, settings = combine.routing, combine.settings
    if not len(entries):
        return np.zeros((0, settings["row_hidden"]), F32)
    values = np.zeros((len(entries), settings["row_hidden"]), F32)
    is_special = routing.special[entries] >= 0
    values[~is_special] = combine.arrived(entries[~is_special])
    for i in np.flatnonzero(is_special):
        values[i] = special_term(combine, rank, entries[i])
    is_weighted = (routing.k[entries] < routing.top_k) & (is_special | (not routing.is_rank_major))
    if settings["weighted"][rank]:
        values = np.where(is_weighted[:, None], routing.weight[entries][:, None] * values, values)
    return values


def special_term(combine, rank, entry):
    """[H]: of a copy or a constant expert, unweighted."""
    routing, case, settings = combine.routing, combine.case, combine.settings

    def row(name, index):
        return to_float32(case.of_rank(name, rank)[index : index + 1], settings["type"])

    x = row("tokens", routing.token[entry])
    constant = routing.special[entry] - settings["zero_experts"] - settings["copy_experts"]
    if constant < 0:
        return x[0]
    return constant_term(x, *(row(name, constant) for name in ("alpha1", "alpha2", "v")))[0]


def bring_home(combine, entries, home):
    routing = combine.routing
    tokens = routing.token[entries]
    if routing.is_rank_major:
        home[tokens] = home[tokens] + combine.brought(entries)
        return
    is_routed = routing.k[entries] < routing.top_k
    home[tokens[is_routed], routing.k[entries][is_routed]] = combine.brought(entries[is_routed])
