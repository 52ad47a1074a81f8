"""ferry.torch_npu's calls: refusals, which the other ranks get too; names of groups; signatures; install()."""

import inspect
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry import torch_npu  # noqa: E402

BF16, FP16 = torch.bfloat16, torch.float16
X, IDS = torch.zeros(1, 4), torch.zeros(1, 1, dtype=torch.int32)


# Wrong calls: refused on this rank, reported to the others, and the group goes on

GOOD_DISPATCH = dict(x=torch.ones(4, 8, dtype=BF16), expert_ids=torch.arange(8, dtype=torch.int32).view(4, 2) % 6,
                     group_ep="ep", ep_world_size=3, moe_expert_num=6)
BAD_DISPATCHES = {
    "float64": (dict(x=torch.ones(4, 8, dtype=torch.float64)), "x is float64"),
    "x of three dimensions": (dict(x=torch.ones(4, 1, 8)), "x is float32 .4, 1, 8."),
    "x on another device": (dict(x=torch.ones(4, 8, device="meta")), "x is on device meta"),
    "x transposed": (dict(x=torch.ones(8, 4, dtype=BF16).t()), "x .* strides .1, 4.: need contiguous rows"),
    "x with a gradient": (dict(x=torch.ones(4, 8, requires_grad=True)), "x requires a gradient"),
    "x is a list": (dict(x=[1.0]), "x is a list"),
    "x is None": (dict(x=None), "x is None"),
    "rows of x": (dict(x=torch.ones(3, 8, dtype=BF16)), r"x is \(3, 8\), expert_ids is \(4, 2\): need as many rows"),
    "int64 ids": (dict(expert_ids=torch.zeros(4, 2, dtype=torch.int64)), "expert_ids is int64"),
    "ids transposed": (dict(expert_ids=torch.zeros(2, 4, dtype=torch.int32).t()),
                       "expert_ids .* need a contiguous array"),
    "id too large": (dict(expert_ids=torch.full((4, 2), 6, dtype=torch.int32)), "6"),
    "mask of bytes": (dict(x_active_mask=torch.ones(4, dtype=torch.uint8)), "x_active_mask is uint8"),
    "mask of three dimensions": (dict(x_active_mask=torch.ones(4, 2, 1, dtype=torch.bool)),
                                 "x_active_mask is bool .4, 2, 1."),
    "mask of another length": (dict(x_active_mask=torch.ones(3, dtype=torch.bool)), "x_active_mask"),
    "float16 weights": (dict(expert_scales=torch.ones(4, 2, dtype=FP16)), "expert_scales is float16"),
    "mx": (dict(quant_mode=4), "quant_mode is 4"),
    "y_dtype": (dict(y_dtype=torch.int8), "y_dtype is torch.int8, need None or bfloat16: expand_x of quant_mode 0"),
    "y_dtype as a number": (dict(y_dtype=24), "y_dtype is 24, need None or bfloat16"),
    "x_dtype": (dict(x_dtype=torch.float16), "x_dtype is torch.float16"),
    "no experts": (dict(moe_expert_num=0), r"_dispatch: moe_expert_num is 0"),
    "experts in words": (dict(moe_expert_num="6"), "moe_expert_num is '6', need an integer"),
    "comm_alg": (dict(comm_alg="ccu"), "comm_alg is \"ccu\""),
    "comm_alg is a number": (dict(comm_alg=1), "comm_alg is 1, need a string"),
    "world size": (dict(ep_world_size=2), "ep_world_size 2"),
    "short performance_info": (dict(performance_info=torch.zeros(2, dtype=torch.int64)), "performance_info has 2"),
    "global_bs": (dict(global_bs=3), "global_bs 3 is less"),
}


@pytest.mark.parametrize("bad", sorted(BAD_DISPATCHES))
def test_bad_dispatch_is_refused_everywhere_and_the_group_goes_on(bad):
    change, message = BAD_DISPATCHES[bad]

    def body(group):
        dispatch = torch_npu.npu_moe_distribute_dispatch_v2
        good = dict(GOOD_DISPATCH, ep_rank_id=group.rank)
        with torch_npu.register_group("ep", group):
            for _ in range(2):  # before the first exchange is made, and after
                kind = ferry.InvalidArgument if group.rank == 1 else ferry.PeerRejected
                with pytest.raises(kind, match=message) as refused:
                    dispatch(**(dict(good, **change) if group.rank == 1 else good))
                assert refused.value.culprit == 1 and refused.value.group_usable
                out = dispatch(**good)
                torch_npu.npu_moe_distribute_combine_v2(
                    out[0], good["expert_ids"], out[2], out[4], torch.ones(4, 2), "ep", 3, group.rank, 6)
        return True

    assert ferry.run_threads(3, body, deadline=10) == [True] * 3


BAD_COMBINES = {
    "int8 rows": (lambda c: c.update(expand_x=c["expand_x"].to(torch.int8)), "expand_x is int8|expand_x"),
    "rows transposed": (lambda c: c.update(expand_x=c["expand_x"].t().contiguous().t()), "need contiguous rows"),
    "few rows": (lambda c: c.update(expand_x=c["expand_x"][:2]), "ep_send_counts names"),
    "counts of int64": (lambda c: c.update(ep_send_counts=c["ep_send_counts"].long()), "ep_send_counts is int64"),
    "counts that fall": (lambda c: c.update(ep_send_counts=c["ep_send_counts"].flip(0).contiguous()), "running sums"),
    "weights of one column": (lambda c: c.update(expert_scales=torch.ones(4, 1)), r"expert_scales is \(4, 1\)"),
    "weights of float16": (lambda c: c.update(expert_scales=torch.ones(4, 2, dtype=FP16)), "expert_scales is float16"),
    "a weight that is no number": (lambda c: c.update(expert_scales=torch.full((4, 2), float("nan"))), "nan|NaN"),
    "short assist info": (lambda c: c.update(assist_info_for_combine=torch.zeros(3, dtype=torch.int32)),
                          "assist_info_for_combine has 3"),
    "shared output of another type": (lambda c: c.update(shared_expert_x=torch.ones(4, 8)),
                                      "shared_expert_x is float32"),
    "shared output of another width": (lambda c: c.update(shared_expert_x=torch.ones(4, 4, dtype=BF16)),
                                       "shared_expert_x"),
    "mx": (lambda c: c.update(comm_quant_mode=3), "comm_quant_mode is 3"),
    "ids are None": (lambda c: c.update(expert_ids=None), "expert_ids is None"),
    "no weights": (lambda c: c.update(expert_scales=None), "expert_scales is None"),
    "no assist info": (lambda c: c.update(assist_info_for_combine=None), "assist_info_for_combine is None"),
    "no counts": (lambda c: c.update(ep_send_counts=None), "ep_send_counts is None"),
}


@pytest.mark.parametrize("bad", sorted(BAD_COMBINES))
def test_bad_combine_is_refused_everywhere_and_the_group_goes_on(bad):
    spoil, message = BAD_COMBINES[bad]

    def body(group):
        given = dict(GOOD_DISPATCH, ep_rank_id=group.rank)
        with torch_npu.register_group("ep", group):
            out = torch_npu.npu_moe_distribute_dispatch_v2(**given)
            del given["x"]
            given.update(expand_x=out[0], assist_info_for_combine=out[2], ep_send_counts=out[4],
                         expert_scales=torch.full((4, 2), 0.5))
            torch_npu.npu_moe_distribute_combine_v2(**given)
            wrong = dict(given)
            if group.rank == 1:
                spoil(wrong)
            with pytest.raises(ferry.InvalidArgument if group.rank == 1 else ferry.PeerRejected, match=message):
                torch_npu.npu_moe_distribute_combine_v2(**wrong)
            return torch_npu.npu_moe_distribute_combine_v2(**given)

    for x in ferry.run_threads(3, body, deadline=10):
        assert torch.equal(x, torch.ones(4, 8, dtype=BF16))


def test_a_refused_call_meets_the_others_where_they_are():
    """A call is refused in an exchange that was not used last, in another mode, and where the others make a new
    exchange."""

    def body(group):
        def call(hidden, wrong, **mode):
            x = torch.ones(4, hidden, dtype=torch.float64 if wrong and group.rank == 1 else BF16)
            given = dict(GOOD_DISPATCH, ep_rank_id=group.rank, x=x, **mode)
            if wrong == "mask":
                given.update(x=torch.ones(4, hidden, dtype=BF16))
                given.update(x_active_mask=torch.ones(4) if group.rank == 1 else None)
            if not wrong:
                return torch_npu.npu_moe_distribute_dispatch_v2(**given)
            with pytest.raises(ferry.InvalidArgument if group.rank == 1 else ferry.PeerRejected):
                torch_npu.npu_moe_distribute_dispatch_v2(**given)

        with torch_npu.register_group("ep", group):
            for hidden in (8, 16, 24):
                call(hidden, wrong=True)  # the other ranks make a new exchange
                call(hidden, wrong=False)
                call(hidden, wrong="mask", quant_mode=2)
                call(hidden, wrong=False, quant_mode=2)
            for hidden in (8, 24, 16):
                call(hidden, wrong=True)
                call(hidden, wrong="mask")
                call(hidden, wrong="mask", quant_mode=2)
                call(hidden, wrong=False)
                call(hidden, wrong=False, quant_mode=2)
        return True

    assert ferry.run_threads(3, body, deadline=10) == [True] * 3


def test_scales_that_do_not_fit_the_mode():
    def body(group):
        with torch_npu.register_group("ep", group):
            for bad, message in [(dict(quant_mode=1), "scales is null"),
                                 (dict(quant_mode=2, scales=torch.ones(5, 8)), "scales has 5 rows, need 1 or 6"),
                                 (dict(quant_mode=2, scales=torch.ones(6, 4)), "scales has 4 columns, need 1 or H 8"),
                                 (dict(quant_mode=3, scales=torch.ones(6, 8)), "scales with quant_mode 3")]:
                with pytest.raises(ferry.InvalidArgument, match=message):
                    torch_npu.npu_moe_distribute_dispatch_v2(**dict(GOOD_DISPATCH, ep_rank_id=group.rank, **bad))

    ferry.run_threads(3, body, deadline=10)


ODD_ONE_OUT = {
    "hidden": (dict(x=torch.ones(4, 16, dtype=BF16)), "H is", {"8", "16"}),
    "type": (dict(x=torch.ones(4, 8)), "type of x is", {"bf16", "fp32"}),
    "top_k": (dict(expert_ids=torch.zeros(4, 1, dtype=torch.int32)), "K is", {"2", "1"}),
    "experts": (dict(moe_expert_num=9), "moe_expert_num is", {"6", "9"}),
    "mode": (dict(quant_mode=2), "quant_mode is", {"none", "2"}),
    "batch": (dict(x=torch.ones(33, 8, dtype=BF16), expert_ids=torch.zeros(33, 2, dtype=torch.int32)), "Bs is",
              {"4", "33"}),
    "fewer tokens": (dict(x=torch.ones(3, 8, dtype=BF16), expert_ids=torch.zeros(3, 2, dtype=torch.int32)), "Bs is",
                     {"4", "3"}),
}


@pytest.mark.parametrize("odd", sorted(ODD_ONE_OUT))
def test_a_rank_that_differs_is_named_and_the_group_goes_on(odd):
    """Arguments that are legal alone but differ from the others' arguments, before there is an exchange and after."""

    def body(group):
        good = dict(GOOD_DISPATCH, ep_rank_id=group.rank)
        change, name, values = ODD_ONE_OUT[odd]
        mine = dict(good, **change) if group.rank == 1 else good
        with torch_npu.register_group("ep", group):
            for _ in range(2):  # before the first exchange is made, and after
                with pytest.raises(ferry.Mismatch) as refused:
                    torch_npu.npu_moe_distribute_dispatch_v2(**mine)
                assert refused.value.culprit == 1 and refused.value.group_usable
                said = str(refused.value).rpartition(f": {name} ")[2]  # nothing else differs
                assert set(said.split(" and ")) == values, refused.value
                torch_npu.npu_moe_distribute_dispatch_v2(**good)
        return True

    assert ferry.run_threads(3, body, deadline=10) == [True] * 3


def test_more_rows_than_a_is_a_capacity_error_of_the_receiver():
    """A token that names an expert twice sends two rows; A counts one."""

    def body(group):
        given = dict(GOOD_DISPATCH, ep_rank_id=group.rank, moe_expert_num=3)
        twice = dict(given, expert_ids=torch.zeros(4, 2, dtype=torch.int32))
        with torch_npu.register_group("ep", group):
            try:
                torch_npu.npu_moe_distribute_dispatch_v2(**twice)
                outcome = "ok"
            except ferry.Capacity as error:
                outcome = str(error)
            given["expert_ids"] = torch.tensor([[0, 1]] * 4, dtype=torch.int32)
            torch_npu.npu_moe_distribute_dispatch_v2(**given)
            return outcome

    first, *others = ferry.run_threads(3, body, deadline=10)
    assert "24 rows were received, the outputs have room for 12" in first and others == ["ok", "ok"]


def test_reserved_arguments_must_be_none_and_norm_needs_its_tensors():
    def body(group):
        ids = torch.zeros(2, 1, dtype=torch.int32)
        with torch_npu.register_group("ep", group):
            out = torch_npu.npu_moe_distribute_dispatch(torch.ones(2, 8), ids, "ep", 1, 0, 1)
            given = (out[0], ids, out[2], out[4], torch.ones(2, 1))
            for reserved in ("activation_scale", "weight_scale", "group_list"):
                with pytest.raises(ferry.InvalidArgument, match=f"{reserved} is reserved"):
                    torch_npu.npu_moe_distribute_combine(*given, "ep", 1, 0, 1, **{reserved: torch.ones(1)})
            norm = torch_npu.npu_moe_distribute_combine_add_rms_norm
            with pytest.raises(ferry.InvalidArgument, match="gamma is None"):
                norm(*given, torch.ones(2, 1, 8), None, "ep", 1, 0, 1)
            with pytest.raises(ferry.InvalidArgument, match=r"residual_x is float32 \[2, 8\], need shape \[2, 1, 8\]"):
                norm(*given, torch.ones(2, 8), torch.ones(8), "ep", 1, 0, 1)

    ferry.run_threads(1, body)


def test_other_ids_than_dispatch_had_are_named_with_token_and_k():
    """One row for each expert as before, but of the other token: without the triplets tokens would be mixed up."""

    def body(group):
        ids = torch.tensor([[0, 2], [4, 6]], dtype=torch.int32)
        given = dict(group_ep="ep", ep_world_size=4, ep_rank_id=group.rank, moe_expert_num=8)
        with torch_npu.register_group("ep", group):
            out = torch_npu.npu_moe_distribute_dispatch_v2(torch.ones(2, 8), ids, **given)
            combine = torch_npu.npu_moe_distribute_combine_v2
            weights = torch.ones(2, 2)
            with pytest.raises(ferry.Mismatch, match="rank 0, token 0, k 0 went to expert 0, .* the id is 6"):
                combine(out[0], torch.tensor([[6, 2], [4, 0]], dtype=torch.int32), out[2], out[4], weights, **given)
            return combine(out[0], ids, out[2], out[4], weights, **given)

    for x in ferry.run_threads(4, body, deadline=10):
        assert torch.equal(x, torch.full((2, 8), 2.0))


def test_a_rank_without_tokens_takes_part_with_any_scales():
    def body(group):
        bs = 0 if group.rank == 1 else 4
        x, ids = torch.ones(bs, 8, dtype=BF16), torch.zeros(bs, 2, dtype=torch.int32)
        given = dict(GOOD_DISPATCH, ep_rank_id=group.rank, x=x, expert_ids=ids, global_bs=12)
        with torch_npu.register_group("ep", group):
            for mine in (torch.ones(0, 3), torch.ones(0, 5), torch.ones(0), None):
                scales = mine if group.rank == 1 else torch.ones(bs, 3)
                torch_npu.npu_moe_distribute_dispatch_v2(**given, scales=scales)
        return True

    assert ferry.run_threads(3, body, deadline=10) == [True] * 3


def test_results_that_are_kept_do_not_change():
    """expand_x is a view of the window while there are views; then it is a copy."""

    def body(group):
        with torch_npu.register_group("ep", group):
            kept = []
            for i in range(24):
                x = torch.full((4, 8), float(i), dtype=BF16)
                out = torch_npu.npu_moe_distribute_dispatch_v2(**dict(GOOD_DISPATCH, ep_rank_id=group.rank, x=x))
                assert out[0].shape == (24, 8)
                kept.append(out[0][:6])
            return [rows.unique().tolist() for rows in kept]

    assert ferry.run_threads(3, body, deadline=10) == [[[float(i)] for i in range(24)]] * 3


# Names of groups


def test_a_group_that_is_none():
    with pytest.raises(ferry.InvalidArgument, match="group is None, need a ferry.Group"):
        torch_npu.register_group("ep", None)


def dispatch_one(name, group):
    x, ids = torch.full((1, 4), float(group.rank)), torch.tensor([[group.size - 1 - group.rank]], dtype=torch.int32)
    return torch_npu.npu_moe_distribute_dispatch_v2(x, ids, name, group.size, group.rank, group.size)[0][0, 0].item()


def test_thread_ranks_share_a_name_or_have_their_own():
    def body(group):
        with torch_npu.register_group("ep", group), torch_npu.register_group(f"ep{group.rank}", group):
            return dispatch_one("ep", group), dispatch_one(f"ep{group.rank}", group)

    assert ferry.run_threads(2, body) == [(1.0, 1.0), (0.0, 0.0)]


def test_a_name_serves_other_threads_when_one_thread_registered_it():
    def body(group):
        torch_npu.register_group(f"only{group.rank}", group)
        got = []
        helper = threading.Thread(target=lambda: got.append(dispatch_one(f"only{group.rank}", group)))
        helper.start()
        helper.join()
        torch_npu.unregister_group(f"only{group.rank}")
        return got

    assert ferry.run_threads(2, body) == [[1.0], [0.0]]


def test_unknown_and_ambiguous_names_say_what_is_known():
    def body(group):
        with torch_npu.register_group("ep", group):
            group.barrier()
            with pytest.raises(ferry.InvalidArgument, match="group 'tp' is not registered .* known: 'ep'"):
                dispatch_one("tp", group)
            errors = []

            def stranger():
                with pytest.raises(ferry.InvalidArgument, match="by 2 threads, and stranger is none of them"):
                    dispatch_one("ep", group)
                errors.append(True)

            thread = threading.Thread(target=stranger, name="stranger")
            thread.start()
            thread.join()
            group.barrier()
            return errors

    assert ferry.run_threads(2, body) == [[True], [True]]
    with pytest.raises(ferry.InvalidArgument, match="known: none"):
        torch_npu.unregister_group("ep")


def test_one_caller_at_a_time():
    """Rank 0 calls from two threads: one is in the call, the other gets an error; then rank 1 calls."""
    told, outcomes = threading.Event(), []

    def call(group):
        try:
            outcomes.append(dispatch_one("ep0", group))
        except ferry.InvalidArgument as error:
            outcomes.append(str(error))
            told.set()

    def body(group):
        with torch_npu.register_group(f"ep{group.rank}", group):
            if group.rank == 1:
                assert told.wait(10)
                return dispatch_one("ep1", group)
            threads = [threading.Thread(target=call, args=(group,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return outcomes

    refused, got = ferry.run_threads(2, body, deadline=20)[0]
    assert "another thread is in a call of this group" in refused and got == 1.0


def test_names_are_checked():
    def body(group):
        for name in ("", "x" * 128, 5):
            with pytest.raises(ferry.InvalidArgument, match="need a string of 1 to 127 characters"):
                torch_npu.register_group(name, group)
        with pytest.raises(ferry.InvalidArgument, match="another name"):
            torch_npu.register_group("ep", group, group_tp="ep")

    ferry.run_threads(1, body)


def both_ways(group):
    """A pair on all ranks: tokens of rank r are r + 1, experts double them, two weights of a half."""
    ids = torch.tensor([[0, 1], [1, 0], [0, 1]], dtype=torch.int32)
    x = torch.full((3, 16), group.rank + 1.0, dtype=BF16)
    with torch_npu.register_group("ep", group):
        out = torch_npu.npu_moe_distribute_dispatch_v2(x, ids, "ep", 2, group.rank, 2)
        return torch_npu.npu_moe_distribute_combine_v2(
            out[0] * 2, ids, out[2], out[4], torch.full((3, 2), 0.5), "ep", 2, group.rank, 2).tolist()


def test_ranks_may_be_processes():
    assert ferry.spawn(2, both_ways) == [[[2.0] * 16] * 3, [[4.0] * 16] * 3]


def test_a_group_that_is_gone_or_inherited_by_a_fork_is_an_error():
    def body(group):
        with torch_npu.register_group("one", group):
            assert dispatch_one("one", group) == 0
            child = os.fork()
            if child == 0:
                try:
                    dispatch_one("one", types.SimpleNamespace(rank=0, size=1))
                except ferry.Closed:
                    os._exit(7)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            group.destroy()
            with pytest.raises(ferry.Closed):
                torch_npu.npu_moe_distribute_dispatch_v2(X, IDS, "one", 1, 0, 1)

    ferry.run_threads(1, body)


def test_install_makes_import_torch_npu_work_and_nothing_else():
    program = (
        "import sys, torch, ferry.torch_npu\n"
        "assert 'torch_npu' not in sys.modules\n"
        "names = set(dir(torch))\n"
        "ferry.torch_npu.install(); ferry.torch_npu.install()\n"
        "import torch_npu\n"
        "assert torch_npu is ferry.torch_npu and set(dir(torch)) == names\n"
        "sys.modules['torch_npu'] = sys\n"
        "try:\n    ferry.torch_npu.install()\n"
        "except RuntimeError as e:\n    assert 'another torch_npu' in str(e)\n"
        "else:\n    raise SystemExit('no error')\n")
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_program_of_the_page_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)  # as install() does; undone after the test
    page = (Path(__file__).resolve().parents[2] / "docs" / "torch_npu.md").read_text()
    source = re.search(r"```python\n(.*?)```", page, flags=re.S)[1].replace("group = ferry.init()\n", "")

    def body(group):
        tokens = torch.full((5, 8), group.rank + 1.0, dtype=BF16)
        logits = torch.randn(5, 16, generator=torch.Generator().manual_seed(group.rank))
        names = dict(group=group, num_experts=16, logits=logits, bias=torch.zeros(16), x=tokens,
                     experts=lambda rows, counts: rows)
        exec(compile(source, "docs/torch_npu.md", "exec"), names)
        torch_npu.unregister_group("ep")
        assert torch.allclose(names["x"].float(), tokens.float(), rtol=1e-2)  # weights sum to 1
        assert int(names["counts"].sum()) == int(names["ep_counts"][-1])

    ferry.run_threads(2, body)


COMMON = dict(group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0, shared_expert_num=1,
              shared_expert_rank_num=0, global_bs=0)
SPECIAL = dict(zero_expert_num=0, copy_expert_num=0, const_expert_num=0)
CONST_TENSORS = dict(ori_x=None, const_expert_alpha_1=None, const_expert_alpha_2=None, const_expert_v=None)
WORLD = ["group_ep", "ep_world_size", "ep_rank_id", "moe_expert_num"]


@pytest.mark.parametrize(
    "function, positional, keywords",
    [
        ("dispatch", ["x", "expert_ids"],
         dict(COMMON, scales=None, x_active_mask=None, expert_scales=None, quant_mode=0, expert_token_nums_type=1)),
        ("dispatch_v2", ["x", "expert_ids"],
         dict(COMMON, **SPECIAL, scales=None, x_active_mask=None, expert_scales=None, elastic_info=None,
              performance_info=None, quant_mode=0, expert_token_nums_type=1, comm_alg="", y_dtype=None, x_dtype=None,
              scales_dtype=None)),
        ("combine", ["expand_x", "expert_ids", "expand_idx", "ep_send_counts", "expert_scales"],
         dict(COMMON, tp_send_counts=None, x_active_mask=None, activation_scale=None, weight_scale=None,
              group_list=None, expand_scales=None, shared_expert_x=None, out_dtype=0, comm_quant_mode=0,
              group_list_type=0)),
        ("combine_v2", ["expand_x", "expert_ids", "assist_info_for_combine", "ep_send_counts", "expert_scales"],
         dict(COMMON, **SPECIAL, **CONST_TENSORS, tp_send_counts=None, x_active_mask=None, expand_scales=None,
              shared_expert_x=None, elastic_info=None, performance_info=None, comm_quant_mode=0, comm_alg="")),
        ("combine_add_rms_norm",
         ["expand_x", "expert_ids", "expand_idx", "ep_send_counts", "expert_scales", "residual_x", "gamma"],
         dict(COMMON, **SPECIAL, **CONST_TENSORS, tp_send_counts=None, x_active_mask=None, activation_scale=None,
              weight_scale=None, group_list=None, expand_scales=None, shared_expert_x=None, elastic_info=None,
              out_dtype=0, comm_quant_mode=0, group_list_type=0, comm_alg="", norm_eps=1e-6)),
    ],
)
def test_signatures_are_torch_npus(function, positional, keywords):
    parameters = inspect.signature(getattr(torch_npu, "npu_moe_distribute_" + function)).parameters.values()
    assert [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD] == positional + WORLD
    assert {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY} == keywords
