"""ferry.transformers: one experts module, compared with transformers' own all_to_all on the same ranks."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.23")
pytest.importorskip("accelerate")

import ferry  # noqa: E402
import transformers_ranks  # noqa: E402

FLOAT, BF16 = torch.float32, torch.bfloat16
SPREAD, ONE_RANK = {}, {"num_reached": 3}  # experts 0 to 2: rank 0's, on two ranks
WAYS = ["ferry", "ferry_rank_major"]


def error(mine, reference):
    """The largest difference, relative to the largest value of the reference; 0 for two zeros."""
    if mine.numel() == 0:
        return 0.0
    return float((mine.float() - reference.float()).abs().max() / reference.float().abs().max().clamp_min(1e-12))


def check_module(cases, by_rank, way):
    for case, ranks in zip(cases, zip(*by_rank)):
        for rank, ways in enumerate(ranks):
            limit = 1e-5 if case[2] == FLOAT else 0.03
            for i, (mine, reference) in enumerate(zip(ways[way], ways["all_to_all"])):
                assert mine.shape == reference.shape and mine.dtype == reference.dtype, (case, rank, i)
                assert error(mine, reference) <= limit, (case, rank, i, error(mine, reference))
            if way == "ferry" and case[2] == FLOAT:
                assert torch.equal(ways[way][0], ways["all_to_all"][0]), (case, rank)


TWO = [
    ((40, 33), SPREAD, FLOAT, "grouped_mm"),
    ((5, 0), SPREAD, FLOAT, "grouped_mm"),  # a rank without tokens
    ((6, 7), ONE_RANK, FLOAT, "grouped_mm"),  # a rank without rows
    ((0, 4), ONE_RANK, FLOAT, "eager"),  # the rank with all rows has no tokens
    ((0, 0), SPREAD, FLOAT, "grouped_mm"),
    ((9, 70), SPREAD, FLOAT, "eager"),
    ((9, 3), {"top_k": 1}, FLOAT, "batched_mm"),
    ((40, 33), SPREAD, BF16, "grouped_mm"),
    ((6, 7), ONE_RANK, BF16, "eager"),
]
FOUR = [((7, 0, 12, 3), SPREAD, FLOAT, "grouped_mm"), ((3, 4, 0, 9), {"num_reached": 4}, BF16, "eager")]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return ferry.spawn(2, transformers_ranks.compare_modules, str(tmp_path_factory.mktemp("two")), TWO)


@pytest.mark.parametrize("way", WAYS)
def test_sums_and_gradients_are_those_of_all_to_all(two_ranks, way):
    check_module(TWO, two_ranks, way)


def test_four_ranks(tmp_path):
    by_rank = ferry.spawn(4, transformers_ranks.compare_modules, str(tmp_path), FOUR)
    for way in WAYS:
        check_module(FOUR, by_rank, way)


def test_one_rank_with_another_dtype_top_k_or_way_is_an_error_at_once(tmp_path):
    deadline = 60.0
    for said in ferry.spawn(2, transformers_ranks.call_differently, str(tmp_path), deadline):
        assert len(said) == 6
        for (name, _), (text, seconds) in said.items():
            assert text.startswith("Mismatch: rank 0 dispatches with ") and name in text, text
            assert seconds < deadline / 2


def test_layers_share_an_exchange_that_grows(tmp_path):
    for rank, said in enumerate(ferry.spawn(2, transformers_ranks.use_exchanges, str(tmp_path))):
        assert said["shared"] == 1
        assert said["rooms"] == [4, 32, 32]  # powers of two, for the rank with most tokens
        assert said["copied in rows"] == pytest.approx(1) and not said["graph"]  # outputs of experts, but no rows
        kind, text = said["refused"]
        assert kind == ("InvalidArgument" if rank == 1 else "PeerRejected") and "outside [-1, 8)" in text, text
        assert said["usable"] and said["kept"] == [True, False]
