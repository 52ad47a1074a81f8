"""The layer with rows that are sent encoded: every wire of dispatch and combine has the bits of the calls by hand."""

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.moe import SwiGLU, moe  # noqa: E402

HIDDEN, EXPERTS, TOP_K = 300, 6, 3  # not a multiple of a group of 128 channels
TOKENS = (0, 5, 17)


def numbers(rank, dtype):
    generator = torch.Generator().manual_seed(rank)
    count = TOKENS[rank]
    tokens = torch.randn(count, HIDDEN, generator=generator) * 10 ** torch.randn(count, 1, generator=generator)
    tokens[1:2] = 0
    tokens[2:3, 200] = torch.inf
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(-1)[:, :TOP_K].contiguous()
    return tokens.to(dtype), ids, torch.rand(count, TOP_K, generator=generator)


def decoded(rows, scales, wire, dtype):
    """The encoding of docs/numerics.md, element by element."""
    result = torch.empty(rows.shape)
    for row, channel in ((row, channel) for row in range(len(rows)) for channel in range(HIDDEN)):
        group = 0 if wire == "int8" else channel // 128
        if wire == "fp8_ue8m0":
            exponent = scales[row, group // 4].item() >> 8 * (group % 4) & 255
            scale = torch.tensor(torch.nan if exponent == 255 else 2.0 ** (exponent - 127))
        else:
            scale = scales[row, group]
        result[row, channel] = rows[row, channel].float() * scale
    return result.to(dtype)


def both(group, settings, dtype, overlap):
    """(one call, the calls by hand), of all tokens or of the two halves."""
    exchange = group.exchange(max_tokens=max(TOKENS), hidden=HIDDEN, num_experts=EXPERTS, top_k=TOP_K, dtype=dtype,
                              **settings)
    torch.manual_seed(group.rank)
    experts = SwiGLU(EXPERTS // group.size, HIDDEN, 8, dtype)
    tokens, ids, weights = numbers(group.rank, dtype)
    half = (len(tokens) + 1) // 2
    by_hand = []
    with torch.no_grad():
        one = moe(exchange, tokens, ids, weights, experts, overlap=overlap)
        for part in [slice(None)] if overlap is None else [slice(half), slice(half, None)]:
            received = exchange.dispatch(tokens[part], ids[part])
            rows = received.rows
            if "wire" in settings:
                rows = decoded(rows, received.scales, settings["wire"], dtype)
            outputs = experts(rows, received.handle.tokens_per_expert.tolist())
            by_hand.append(exchange.combine(outputs, received.handle, weights[part]))
    return one, torch.cat(by_hand)


def same_bits(one, other):
    integers = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return torch.equal(one.nan_to_num(7).view(integers), other.nan_to_num(7).view(integers))


@pytest.mark.parametrize("overlap", [None, "batches"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("settings", [
    dict(wire="int8"), dict(wire="fp8"), dict(wire="fp8_pow2"), dict(wire="fp8_ue8m0"),
    dict(wire="fp8", scale_order="column_major"), dict(wire="fp8_ue8m0", scale_order="column_major"),
    dict(combine_wire="int8_128"), dict(combine_wire="logfmt10"), dict(wire="int8", combine_wire="logfmt10"),
], ids=lambda settings: "-".join(settings.values()))  # fmt: skip
def test_one_call_has_the_bits_of_the_calls_by_hand(settings, dtype, overlap):
    for rank, (one, by_hand) in enumerate(ferry.run_threads(3, both, settings, dtype, overlap)):
        assert same_bits(one, by_hand)
        if rank == 2:
            assert one.isfinite().all(1).sum() >= 10 and one[2].isnan().all()


def test_ranks_that_are_processes():
    for one, by_hand in ferry.spawn(2, both, dict(wire="fp8_ue8m0"), torch.bfloat16, None):
        assert same_bits(one, by_hand)


def refused(group):
    """The backward pass of one rank, where only that rank needs gradients; the exchange goes on."""
    told, out = [], None
    for settings, wrong in ((dict(wire="int8"), {0, 1}), (dict(wire="fp8"), {1}), (dict(combine_wire="int8_8"), {1})):
        exchange = group.exchange(max_tokens=17, hidden=HIDDEN, num_experts=EXPERTS, top_k=TOP_K, **settings)
        tokens, ids, weights = numbers(group.rank, torch.bfloat16)
        with pytest.raises(ferry.InvalidArgument if group.rank in wrong else ferry.PeerRejected) as error:
            moe(exchange, tokens.requires_grad_(group.rank in wrong), ids, weights, torch.nn.Identity())
        told.append(str(error.value))
        with torch.no_grad():
            out = moe(exchange, tokens, ids, weights, lambda rows, counts, out: out.copy_(rows))
    with pytest.raises(ferry.InvalidArgument, match="'int8_static' needs scales"):
        moe(group.exchange(max_tokens=17, hidden=HIDDEN, num_experts=EXPERTS, top_k=TOP_K, wire="int8_static"),
            *numbers(group.rank, torch.bfloat16), torch.nn.Identity())
    return told, out.shape


def test_gradients_are_refused_on_all_ranks():
    expected = ("wire 'none', not 'int8'", "wire 'none', not 'fp8'", "combine_wire 'none', not 'int8_8'")
    for rank, (told, shape) in enumerate(ferry.run_threads(2, refused, deadline=5)):
        assert all(part in text for part, text in zip(expected, told)), told
        assert shape == (TOKENS[rank], HIDDEN)
