"""The layer in torch.distributed: DDP, FSDP2, checkpoints of other numbers of ranks, clipping, and refusals."""

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import ferry  # noqa: E402
import moe_mesh_ranks as ranks  # noqa: E402


def check_training(found, size):
    norms, weights = ranks.dense_training(size)
    for of_rank in found:
        for of_way in of_rank:
            torch.testing.assert_close(of_way[0], norms, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(of_way[1], weights, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(of_way, found[0][0], rtol=1e-5, atol=1e-6)


def test_three_steps_are_those_of_the_dense_model(tmp_path):
    """EP 2 x DP 2 and EP 4, DDP and FSDP2; in the first step half of the experts get no row, and clipping changes
    norms."""
    ways = [(2, "ddp"), (2, "fsdp"), (4, "ddp"), (4, "fsdp")]
    found = ferry.spawn(4, ranks.train, str(tmp_path), ways, deadline=120)
    check_training(found, 4)
    assert all(norm > ranks.MAX_NORM for norm in found[0][0][0])


@pytest.mark.long
def test_checkpoints_are_loaded_on_other_numbers_of_ranks(tmp_path):
    """Saved on 2 ranks, loaded on 4 as EP 4 and then as EP 2 x DP 2, saved there and loaded on 2: the same bits, also
    of the optimizer."""
    two, four, squared = (2, "ddp"), (4, "ddp"), (2, "fsdp")
    chains = [(2, [(two, None, "a")]), (4, [(four, "a", "b"), (squared, "b", "c")]), (2, [(two, "c", "d")])]
    found = [each for size, chain in chains
             for of_rank in ferry.spawn(size, ranks.passed_on, str(tmp_path), chain, deadline=120) for each in of_rank]
    assert len(found) == 2 + 8 + 2
    assert found[0]["layer.experts.down"].any() and found[0]["layer.experts.down.exp_avg"].any()
    for each in found:
        torch.testing.assert_close(each, found[0], rtol=0, atol=0)


def check_told(by_rank, expected):
    for told in by_rank:
        for what, text in expected.items():
            assert text in told[what], (what, told[what])


def test_what_two_ranks_may_not_do_is_told(tmp_path):
    by_rank = ferry.spawn(2, ranks.refusals_of_two, str(tmp_path), deadline=60)
    check_told(by_rank, {
        "made early": "InvalidArgument: MoE: torch.distributed was initialised after this layer",
        "DDP(layer)": "InvalidArgument: MoE: DistributedDataParallel would make all ranks' experts those of rank 0",
        "DDP(model)": "got mixed torch.Tensor and DTensor",
        "DDP without a broadcast": "InvalidArgument: MoE: DistributedDataParallel holds the experts",
        "fully_shard(model)": "Error",
        "list": "InvalidArgument: MoE: mesh is list, not a torch DeviceMesh",
        "two dimensions": "InvalidArgument: MoE: mesh has the 2 dimensions ('dp', 'ep')",
        "other ranks": "of torch.distributed, the group [0, 1]",
        "mesh on one rank": "InvalidArgument: MoE: rank 1 has no mesh, rank 0 has one",
        "a module for each expert": "parameter '0.weight' of the experts is [16, 16]: to be sharded it needs 2",
        "fully_shard(experts)": "InvalidArgument: MoE: experts is wrapped by FSDP",
        "and then": "nothing",
    })


@pytest.mark.long
def test_what_four_ranks_may_not_do_is_told(tmp_path):
    by_rank = ferry.spawn(4, ranks.refusals_of_four, str(tmp_path), deadline=60)
    check_told(by_rank, {
        "no mesh": "of the 4 of torch.distributed: give mesh=",
        "ddp without fully_shard": "InvalidArgument: ddp: the experts of 'layer' are spread over 2 of 4 ranks",
        "switch": "InvalidArgument: MoE.switch: fully_shard has spread",
        "sum_gradients": "InvalidArgument: MoE.sum_gradients: fully_shard has spread",
        "fully_shard(model)": "Error",
        "all at once": "Cannot concatenate overlapping meshes",
    })


@pytest.mark.long
def test_copies_move_and_learn_on_a_mesh_as_without(tmp_path):
    """Placement, switch, sum_gradients, a rank that is away, and a module of the caller with buffers."""
    for plain, meshed, names, state, told, kept in ferry.spawn(2, ranks.copies, str(tmp_path), deadline=60):
        torch.testing.assert_close(meshed, plain, rtol=1e-6, atol=1e-6)
        assert all(of_expert.tolist() == [0.5 + expert for expert in held] for held, *_, of_expert in sum(plain, []))
        assert names == {"experts.factors": True, "experts.of_expert": True, "experts.all": False}
        assert state["experts.of_expert"].tolist() == [0.5, 1.5, 2.5, 3.5] and state["experts.all"][0] == 2
        assert state["experts.factors"][:, 0].tolist() == [1, 2, 3, 4]
        assert "got mixed torch.Tensor and DTensor" in told and kept


@pytest.mark.long
def test_ranks_may_be_away_under_fully_shard(tmp_path):
    for found in ferry.spawn(4, ranks.away, str(tmp_path), deadline=60):
        assert len(found) == 6 and all(all(each) for each in found)
