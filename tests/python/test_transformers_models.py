"""ferry.transformers in whole models, tiny and random: from_pretrained with FSDP2, tensor parallel ranks, by hand,
recomputed layers; and a rank that dies. Compared with transformers' own all_to_all on the same ranks."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.23")
pytest.importorskip("accelerate")

import ferry  # noqa: E402
import transformers_ranks  # noqa: E402

MODELS = list(transformers_ranks.CONFIGS)
REFERENCE = ("all_to_all", False, "grouped_mm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    transformers_ranks.save_models(folder, MODELS)
    return folder


def spawn(num_ranks, function, folder, *arguments):
    (folder / "store").unlink(missing_ok=True)
    return ferry.spawn(num_ranks, function, str(folder), *arguments, deadline=600)


def check(mine, reference, what, bits=False):
    """Compares logits and gradients. A parameter that no token reached has zeros, with the tolerance of gradients up to
    1e-3."""
    logits, grads = mine
    expected_logits, expected_grads = reference
    if bits:
        assert torch.equal(logits, expected_logits), what
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-5 * float(expected_logits.abs().max()))
    assert grads.keys() == expected_grads.keys() and grads
    for name, grad in grads.items():
        largest = float(expected_grads[name].abs().max()) if grad.numel() else 0
        close = dict(rtol=1e-4, atol=1e-5 * max(largest, 1e-3), msg=lambda text: f"{what} {name}: {text}")
        torch.testing.assert_close(grad, expected_grads[name], **close)


def compare(num_ranks, folder, models, sizes, ways):
    by_rank = spawn(num_ranks, transformers_ranks.compare_models, folder, models, sizes, [REFERENCE, *ways])
    for rank, found in enumerate(by_rank):
        for model, results in found.items():
            for way in ways:
                bits = way[0] == "ferry" and way[2] == REFERENCE[2]
                check(results[way], results[REFERENCE], (model, rank, way), bits)


def test_loaded_with_fsdp_on_two_ranks(folder):
    ways = [("ferry", False, "grouped_mm"), ("ferry", True, "grouped_mm"), ("ferry_rank_major", True, "grouped_mm")]
    compare(2, folder, MODELS, dict(fsdp_size=2, ep_size=2), ways)


def test_loaded_with_fsdp_on_four_ranks(folder):
    compare(4, folder, ["qwen3_moe"], dict(fsdp_size=4, ep_size=4), [("ferry", False, "eager")])


def test_tensor_parallel_ranks_share_a_batch(folder):
    compare(4, folder, ["mixtral"], dict(fsdp_size=2, tp_size=2, ep_size=4), [("ferry", False, "grouped_mm")])


def test_by_hand_with_another_number_of_tokens_on_each_rank(folder):
    for rank, found in enumerate(spawn(2, transformers_ranks.compare_by_hand, folder, MODELS)):
        for model, results in found.items():
            check(results["ferry"], results["all_to_all"], (model, rank), bits=True)


def test_models_one_after_the_other_whenever_garbage_is_collected(folder):
    assert spawn(2, transformers_ranks.one_model_after_the_other, folder, "mixtral") == ["trained twice"] * 2


def test_a_rank_that_dies_in_training_ends_the_others(folder):
    with pytest.raises(ferry.PeerLost, match="rank 1"):
        spawn(2, transformers_ranks.die_in_training, folder, "qwen3_moe")
    kind, seconds, message = (folder / "told").read_text().split("|", 2)
    assert kind == "PeerLost" and float(seconds) < 60 and "rank 1" in message, message
