"""The mega kernels' names, CANN's and DeepGEMM's, against ferry.moe; and their refusals."""

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.deep_ep import mega_moe as deep_gemm  # noqa: E402
from ferry.moe import MoE  # noqa: E402
from ferry.torch_npu import mega_moe as cann  # noqa: E402

SHAPE = (8, 16, 2, 32, 24)  # experts, tokens, top-k, hidden, intermediate


def results(group):
    experts, most, top_k, hidden, intermediate = SHAPE
    generator = torch.Generator().manual_seed(group.rank)
    count = 11 + group.rank
    x = torch.randn(count, hidden, generator=generator).bfloat16()
    ids = torch.rand(count, experts, generator=generator).argsort(-1)[:, :top_k].contiguous()
    weights = torch.rand(count, top_k, generator=generator)
    layer = MoE(group, hidden=hidden, intermediate=intermediate, num_experts=experts, top_k=top_k, max_tokens=most)
    l1, l2 = layer.experts.gate_up.detach(), layer.experts.down.detach()
    with torch.no_grad():
        wanted = layer(x, ids, weights)

    buffer = cann.get_symm_buffer_for_mega_moe(group, *SHAPE)
    y, numbers = cann.mega_moe(x, ids.int(), weights, list(l1), list(l2), buffer)
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(group, *SHAPE)
    for given, value in ((buffer.x, x), (buffer.topk_idx, ids), (buffer.topk_weights, weights)):
        given[:count] = value
    out, stats = torch.empty_like(x), torch.ones(experts // group.size, dtype=torch.int32)
    deep_gemm.bf16_mega_moe(out, *deep_gemm.transform_weights_for_mega_moe(l1, l2), buffer,
                            cumulative_local_expert_recv_stats=stats)
    refusals(group, buffer, (x, ids, weights, l1, l2), out.clone())
    return wanted, y, out, numbers, stats, ids


def refusals(group, buffer, given, out):
    """The request of rank 1 is refused there, and the others get ferry.PeerRejected."""
    odd = group.rank == 1
    told = ferry.InvalidArgument if odd else ferry.PeerRejected
    for wrong in (dict(activation="gelu"), dict(activation_clamp=7.0), dict(l1_bias=[0])):
        with pytest.raises(told, match=next(iter(wrong))):
            cann.mega_moe(*given, buffer, **(wrong if odd else {}))
    with pytest.raises(told, match="dispatch_quant_mode=4"):
        cann.get_symm_buffer_for_mega_moe(group, *SHAPE, dispatch_quant_mode=4 if odd else 0)
    with pytest.raises(told, match="shared_l1_weights"):
        deep_gemm.bf16_mega_moe(out, *given[3:], buffer, shared_l1_weights=1 if odd else None)
    for y, complaint in ((None, "y is no tensor"), (out[0], "y is no tensor"),
                         (out.float(), r"y is torch.float32 \[12, 32\], not torch.bfloat16 \[12, 32\]")):
        with pytest.raises(told, match=complaint):
            deep_gemm.bf16_mega_moe(y if odd else out, *given[3:], buffer)
    with pytest.raises(told, match=r"stats is torch.int64 \[4\], not torch.int32 \[4\]"):
        deep_gemm.bf16_mega_moe(out, *given[3:], buffer, cumulative_local_expert_recv_stats=torch.zeros(4).long()
                                if odd else None)
    l1, l2 = given[3:]
    for wrong, complaint in (((l1[:, :10], l2), r"l1_weights\[0\] is torch.bfloat16 \[10, 32\]"),
                             ((l1, l2.float()), r"l2_weights\[0\] is torch.float32"),
                             ((l1[:2], l2), "l1_weights of 2 experts, this rank has 4")):
        with pytest.raises(told, match=complaint):
            cann.mega_moe(*given[:3], *(wrong if odd else (l1, l2)), buffer)
    with pytest.raises(told, match=r"l1_bias=torch.bfloat16 \[4, 48, 32\] is not supported"):
        cann.mega_moe(*given, buffer, l1_bias=l1 if odd else None)


def test_both_names_give_the_layer():
    found = ferry.run_threads(2, results, deadline=10)
    counts = torch.cat([ids.flatten() for *_, ids in found]).bincount(minlength=8).view(2, 4)
    for rank, (wanted, y, out, numbers, stats, _) in enumerate(found):
        assert torch.equal(y, wanted) and torch.equal(out, wanted)
        assert numbers.tolist() == counts[rank].tolist() == (stats - 1).tolist()
