"""No plan is faster than a linear program over the same links allows. Where the program's value is known from a cut,
the planner reaches it."""

import math
import random

import pytest

import ferry

linprog = pytest.importorskip("scipy.optimize").linprog
TOKENS, ROW_BYTES, EXPERTS, TOP_K = 4096, 14336, 256, 8


def touched(experts):
    return 1 - math.comb(EXPERTS - experts, TOP_K) / math.comb(EXPERTS, TOP_K)


def least_us(arcs, ranks):
    """The least time of an exchange in which every rank sends every other rank its rows: arcs {(from, to, name): GB/s},
    any routes, any splits. There is one flow for each source; the busiest arc decides."""
    demand = TOKENS * ROW_BYTES * touched(EXPERTS // ranks) / 1e3  # GB/s * us
    names, time = list(arcs), len(arcs) * ranks
    kept, wanted = [], []  # the flow out of a rank less the flow into it
    for source in range(ranks):
        for rank in range(ranks):
            row = {}
            for i, (start, end, _) in enumerate(names):
                if rank in (start, end):
                    row[source * len(arcs) + i] = 1 if start == rank else -1
            kept.append(row)
            wanted.append(demand * (ranks - 1) if rank == source else -demand)
    capacity = [{**{source * len(arcs) + i: 1 for source in range(ranks)}, time: -arcs[name]}
                for i, name in enumerate(names)]
    cost = [0] * time + [1]
    found = linprog(cost, A_eq=matrix(kept, time + 1), b_eq=wanted, A_ub=matrix(capacity, time + 1),
                    b_ub=[0] * len(capacity), method="highs")
    assert found.status == 0, found.message
    return found.fun


def matrix(rows, columns):
    from scipy.sparse import lil_matrix
    sparse = lil_matrix((len(rows), columns))
    for i, row in enumerate(rows):
        for column, value in row.items():
            sparse[i, column] = value
    return sparse.tocsr()


def both_ways(pairs, name, rate):
    return {(a, b, name): rate for pair in pairs for a, b in (pair, pair[::-1])}


def two_nodes(second_way):
    """The partly linked machine, from its table."""
    vnodes = [range(first, first + 4) for first in (0, 4, 8, 12)]
    arcs = both_ways([(a, b) for vnode in vnodes for a in vnode for b in vnode if a < b], "peer", 50)
    mates = [(0, 5), (1, 4), (2, 7), (3, 6)]
    arcs |= both_ways(mates + [(a + 8, b + 8) for a, b in mates], "mate1", 50)
    arcs |= both_ways([(i, i + 8) for i in range(8)], "ib", 13)
    if second_way:
        arcs |= both_ways([(0, 12), (1, 13), (2, 14), (3, 15), (4, 8), (5, 9), (6, 10), (7, 11)], "port10", 25)
    return arcs


def bounds(machine):
    plan = ferry.plan(machine, tokens=TOKENS, hidden=ROW_BYTES // 2, experts=EXPERTS, top_k=TOP_K)
    return {one["strategy"]: one for one in plan["predictions"]}


@pytest.mark.parametrize("machine, strategy, second_way, ms", [
    ("ubbv2:2", "fullmesh", False, 14.74), ("ubbv2:2@port10", "fullmesh, split", True, 5.04)])
def test_the_cut_between_two_nodes_is_met(machine, strategy, second_way, ms):
    least = least_us(two_nodes(second_way), 16)
    assert least == pytest.approx(1000 * ms, rel=0.002)
    assert least == pytest.approx(8 * touched(16) * TOKENS * ROW_BYTES / 1e3 / (38 if second_way else 13), rel=1e-6)
    assert bounds(machine)[strategy]["bound_us"]["dispatch"] == pytest.approx(least, rel=1e-6)


def around(sizes, rate):
    """A ring for one size, a torus for two: (arcs, lines)."""
    ranks, pairs = math.prod(sizes), {}
    for rank in range(ranks):
        for name, step, size in zip("xy", (1, sizes[0]), sizes):
            place = rank // step % size
            pairs.setdefault(name, set()).add(tuple(sorted((rank, rank + ((place + 1) % size - place) * step))))
    lines, arcs = f"rank:{ranks}\n", {}
    for name, joined in pairs.items():
        lines += f"link {name} pairs {','.join(f'{a}-{b}' for a, b in sorted(joined))} {rate}GB/s\n"
        arcs |= both_ways(sorted(joined), name, rate)
    return arcs, lines


@pytest.mark.parametrize("sizes", [(4,), (8,), (16,), (4, 2), (4, 4)])
def test_rings_and_tori_take_what_the_best_routes_take(sizes):
    arcs, lines = around(sizes, 10)
    least = least_us(arcs, math.prod(sizes))
    assert bounds(lines)["fullmesh"]["bound_us"]["dispatch"] == pytest.approx(least, rel=1e-6)


def random_machine(chance):
    """Eight ranks, a ring of random order and some more pairs: (arcs, lines)."""
    order = chance.sample(range(8), 8)
    ring = [tuple(sorted((order[i], order[i - 1]))) for i in range(8)]
    more = [pair for pair in [(a, b) for a in range(8) for b in range(a)] if tuple(sorted(pair)) not in ring]
    more = chance.sample(more, chance.randint(1, 10))
    kinds = {"ring": (ring, chance.randint(5, 50)), "more": (more, chance.randint(5, 50))}
    lines, arcs = "rank:8\n", {}
    for name, (pairs, rate) in kinds.items():
        lines += f"link {name} pairs {','.join(f'{a}-{b}' for a, b in pairs)} {rate}GB/s\n"
        arcs |= both_ways(pairs, name, rate)
    return arcs, lines


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_faster_than_any_routes_could_be(seed):
    arcs, lines = random_machine(random.Random(seed))
    least = least_us(arcs, 8)
    fullmesh = bounds(lines)["fullmesh"]
    assert fullmesh["bound_us"]["dispatch"] >= least * (1 - 1e-9)
    assert fullmesh["dispatch_us"] >= fullmesh["bound_us"]["dispatch"] * (1 - 1e-9)
