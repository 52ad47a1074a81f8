"""Clauses of torch_npu about both versions of npu_moe_distribute_dispatch and combine, and about the gate before them.

The implementation finds its group by a name: the name of the HCCL communicator, or, if the implementation has
register_group(name, process group), the name that was given there.
"""

import traceback

import numpy as np
import torch
import torch.distributed as dist

from . import torch_npu_oracle as oracle
from .clauses import clause
from .routing import ids_of_ranks
from .torch_npu_cases import (
    check_combined, check_dispatched, draw, make_case, play_combine, play_dispatch,
)

_FUNCTIONS = ("npu_moe_distribute_dispatch", "npu_moe_distribute_dispatch_v2", "npu_moe_distribute_combine",
              "npu_moe_distribute_combine_v2", "npu_moe_distribute_combine_add_rms_norm", "npu_moe_gating_top_k")


class _Placed:
    """Calls the implementation with tensors that are moved to the device and with the name of the group, and moves the
    results back to the CPU."""

    def __init__(self, world):
        self._world, self._name = world, _group_name(world)

    def __getattr__(self, function):
        place, call = self._world.place, getattr(self._world.api, function)

        def moved(*args, **kwargs):
            args = [place(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            kwargs = {name: place(arg) if isinstance(arg, torch.Tensor) else arg for name, arg in kwargs.items()}
            if "group_ep" in kwargs:
                kwargs["group_ep"] = self._name
            results = call(*args, **kwargs)
            return results.cpu() if isinstance(results, torch.Tensor) else tuple(result.cpu() for result in results)

        return moved


def _group_name(world):
    if hasattr(world.api, "register_group"):
        registered = world.api.register_group("conformance", world.group)
        world.at_end(lambda: registered.__exit__(None, None, None))
        return "conformance"
    backend = dist.group.WORLD._get_backend(torch.device(world.device))
    return backend.get_hccl_comm_name(world.rank)


def _check(world, case, rounds=2):
    """Dispatches and combines, and compares all results with the oracle."""
    api = _Placed(world)
    expert_rows = [draw(np.random.default_rng(99 + r), (len(oracle.flatten(case, r)), case.h), case.dtype)
                   for r in range(case.size)]
    wanted = oracle.combine(case, expert_rows)[world.rank]
    for _ in range(rounds):
        dispatched = play_dispatch(api, case, world.rank)
        expert_x = torch.zeros(len(dispatched[0]), case.h, dtype=case.dtype)
        expert_x[: len(expert_rows[world.rank])] = expert_rows[world.rank]
        combined = play_combine(api, case, world.rank, dispatched, expert_x)
    for compare in (lambda: check_dispatched(case, world.rank, dispatched),
                    lambda: check_combined(case, world.rank, combined, wanted)):
        try:
            compare()
        except AssertionError as error:
            line = traceback.extract_tb(error.__traceback__)[-1].line
            world.complain(f"not as the oracle has it: {str(error) or line}")


def _case(world, **fields):
    return make_case(world.seed, **{"ep": world.size, "moe": 4 * world.size, **fields})


def _pairs(name, text, **fields):
    def check(world):
        _check(world, _case(world, **fields))

    check.__doc__ = text
    return clause(name)(check)


_pairs("distribute.v2", "dispatch_v2 gives rows by local expert, source rank and token, with triplets, counts and "
       "weights; combine_v2 weighs and adds in float32 in k order and rounds once.")
_pairs("distribute.v1", "Version 1: the third result says how many earlier entries have the same expert.", version=1)
_pairs("distribute.float16", "float16 is dispatched and combined as bfloat16 is.", dtype=torch.float16)
_pairs("distribute.running_counts", "expert_token_nums_type 0: expert_token_nums are running sums.", nums_type=0)
_pairs("distribute.token_mask", "x_active_mask [Bs], a prefix: the other tokens take no part and get zeros.",
       mask="prefix")
_pairs("distribute.shared_expert_x", "shared_expert_x is added without a weight before the sum is rounded.",
       shared_x=True)
_pairs("distribute.unequal_tokens", "With global_bs the ranks may have different numbers of tokens.", unequal=True)
_pairs("distribute.static_int8", "quant_mode 1: int8 of x times a factor, rounded to the nearest.", quant_mode=1,
       factor_shape="one")
_pairs("distribute.int8", "quant_mode 2: int8 rows, and the scale of each.", quant_mode=2)
_pairs("distribute.special_experts", "Experts that give zero or the token itself are not sent.", zero=1, copy=1)


@clause("distribute.add_rms_norm")
def add_rms_norm(world):
    """combine_add_rms_norm adds residual_x before the sum is rounded, and normalises it with gamma."""
    gamma = draw(np.random.default_rng(12), (48,), torch.bfloat16)
    _check(world, _case(world, gamma=gamma, eps=1e-5))


@clause("trace.distribute")
def trace(world):
    """The ids of a router trace (--routing, or skewed ones): rows, counts and sums of version 2 are right."""
    ids, num_experts = ids_of_ranks(world, 16)
    case = _case(world, moe=num_experts, k=ids[0].shape[1], bs=16)
    for inputs, chosen in zip(case.ranks, ids):
        inputs.ids = chosen.int()
    _check(world, case)


@clause("names.functions")
def functions(world):
    """The module has torch_npu's MoE functions."""
    for name in _FUNCTIONS:
        world.holds(callable(getattr(world.api, name, None)), f"{name} is missing")


@clause("gating.softmax")
def gating(world):
    """npu_moe_gating_top_k gives the k largest of the softmax, descending, and their experts."""
    x = draw(np.random.default_rng(world.seed), (6, 16))
    weights, ids, _ = world.api.npu_moe_gating_top_k(world.place(x), 4)
    want, which = torch.softmax(x.double(), 1).topk(4, dim=1)
    world.near("the weights", weights.cpu().double(), want, 1e-10)
    world.equal("the experts", ids.cpu().tolist(), which.tolist())
