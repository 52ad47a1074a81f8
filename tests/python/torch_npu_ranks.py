"""torch_npu's operators on the ranks of a group of several nodes, each call compared with the oracle.
test_torch_npu_nodes.py runs it on threads and, as a program under `ferry launch`, on hosts."""

import functools
import sys
import types

import numpy as np
import torch

import ferry
from ferry import torch_npu
from ferry.conformance import torch_npu_oracle as oracle
from ferry.conformance.torch_npu_cases import (
    BF16, FP16, check_combined, check_dispatched, draw, make_case, play_combine, play_dispatch,
)

CASES = [
    dict(), dict(dtype=FP16, unequal=True, mask="entries", negative=True, bs=6), dict(moe=7, k=7, h=33, shared_x=True),
    dict(quant_mode=2, factor_shape="all", h=160), dict(comm_quant_mode=2, quant_mode=2, h=44, shared_ranks=1),
    dict(shared_num=2, shared_ranks=2, moe=6, k=4, mask="any"), dict(zero=1, copy=2, k=8), dict(token_scales=(5,)),
    dict(gamma=draw(np.random.default_rng(12), (48,), BF16), eps=1e-5), dict(tp=2, ep=2, moe=2, k=2), dict(bs=0),
]


def by(comm_alg):
    """torch_npu with this comm_alg as an argument of every call."""
    names = ("npu_moe_distribute_dispatch_v2", "npu_moe_distribute_combine_v2",
             "npu_moe_distribute_combine_add_rms_norm")
    return types.SimpleNamespace(**{name: functools.partial(getattr(torch_npu, name), comm_alg=comm_alg)
                                    for name in names})


def check(group, comm_alg, seed, fields):
    """Sums on 4 ranks. With fullmesh they have the bits of one host; other algorithms round once more for each host."""
    case, rank = make_case(seed, **{"ep": 4, **fields}), group.rank
    rng = np.random.default_rng(99)
    expert_rows = [draw(rng, (len(oracle.flatten(case, r)), case.h), case.dtype) for r in range(case.size)]
    dispatched = play_dispatch(by(comm_alg), case, rank)
    check_dispatched(case, rank, dispatched)
    expert_x = torch.full((len(dispatched[0]), case.h), float("nan"), dtype=case.dtype)
    expert_x[: len(expert_rows[rank])] = expert_rows[rank]
    combined = play_combine(by(comm_alg), case, rank, dispatched, expert_x)
    want = oracle.combine(case, expert_rows)[rank]
    if comm_alg == "fullmesh":
        check_combined(case, rank, combined, want)
    else:
        torch.testing.assert_close(combined.float(), want, rtol=2e-2, atol=2e-2)


def check_all(group):
    with torch_npu.register_group("ep", group, group_tp="tp"):
        for seed, fields in enumerate(CASES):
            if "tp" not in fields or group.topology == "host:2,rank:2":  # its ranks are of one host
                check(group, "fullmesh", seed, fields)
        for comm_alg in ("hierarchy", ""):
            check(group, comm_alg, 20, dict(unequal=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with ferry.init() as group:
        check_all(group)
        sys.stdout.write(f"rank {group.rank} on {group.topology}: the oracle's bits\n")
