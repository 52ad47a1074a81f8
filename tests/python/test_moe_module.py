"""ferry.torch.MoE as a module: dtypes, autocast, compilation, copies, files, shapes, seeds, and one exchange for layers
of equal settings. On processes of torch.distributed, where weights are DTensors, and on ranks without it."""

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import ferry  # noqa: E402
import moe_module_ranks as ranks  # noqa: E402


@pytest.fixture(params=[False, True], ids=["plain", "torch.distributed"])
def play(request, tmp_path):
    """Runs a function of moe_module_ranks on two ranks."""
    folder = str(tmp_path) if request.param else None
    return lambda function, *more: ferry.spawn(2, function, folder, *more, deadline=60.0)


def test_equal_seeds_give_each_rank_its_part_of_all_experts(play):
    assert play(ranks.seeds) == [(True, True)] * 2
    assert all(map(all, ferry.spawn(2, ranks.seeds_of_copies)))


def test_autocast_half_and_to(play):
    for found in play(ranks.dtypes):
        assert len(found) == 11
        assert all(map(all, found.values())), found


def test_mixed_precision_of_fully_shard(tmp_path):
    assert ferry.spawn(2, ranks.mixed_precision, str(tmp_path), deadline=60.0) == [(True, True, True)] * 2


def test_another_dtype_on_one_rank_is_an_error_at_once(play):
    for rank, (text, seconds, again) in enumerate(play(ranks.another_dtype)):
        own = "Mismatch: MoE: the tokens of this rank are torch.bfloat16, those of another rank float32"
        assert text.startswith(own if rank == 1 else "PeerRejected: "), text
        assert "torch.bfloat16" in text and seconds < 30 and again


def test_tokens_of_any_dimensions(play):
    for found in play(ranks.shapes):
        assert all(found.values()), found


def test_deepcopy(play):
    assert play(ranks.copies) == [(True, True, True, True)] * 2


def test_save_and_load(play):
    for same, shared, kind, unjoined, joined in play(ranks.saved):
        assert same and shared and kind
        assert unjoined == "InvalidArgument: MoE: this layer was loaded from a file and has no ranks: call join(group)"
        assert joined == "InvalidArgument: MoE.join: this layer has a group"


def test_layers_of_equal_settings_share_an_exchange(play):
    assert play(ranks.sharing) == [(True, False, True, True, True)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_compile(play, dtype):
    assert play(ranks.compiled, dtype) == [(True, True)] * 2


def test_gradients_are_means_or_sums(play):
    for found in play(ranks.gradients):
        assert found["mean"] == pytest.approx([0.5, 0.5], rel=1e-4)
        assert found["sum"] == pytest.approx([1.0, 1.0], rel=1e-4)
        assert found["wrong"] == "InvalidArgument: MoE: gradients is 'none', need 'mean' or 'sum'"
