"""The exchange in which ranks agree on a dispatch of the normal kernels: that of the dispatch before, and a new one
only if one of the ranks does not go on with it."""

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import Buffer
from ferry.exchanges import Exchanges
from test_deep_ep_buffer import check_combine, outputs_of, send

INPUTS = Inputs(71, [6, 9, 0], num_experts=6, top_k=2)
MORE = Inputs(72, [3, 40, 2], num_experts=6, top_k=2)


@pytest.fixture
def tells(monkeypatch):
    """A function whose context expects the calling rank, a thread, to gather with the others exactly so many times."""
    counts, gather = threading.local(), Exchanges._gather

    def count(self, *arguments):
        counts.of_rank = getattr(counts, "of_rank", 0) + 1
        return gather(self, *arguments)

    @contextlib.contextmanager
    def expect(times):
        before = getattr(counts, "of_rank", 0)
        yield
        assert getattr(counts, "of_rank", 0) - before == times

    monkeypatch.setattr(Exchanges, "_gather", count)
    return expect


def check(buffer, inputs, rank, **more):
    recv_x, *_, handle, _ = send(buffer, inputs, rank, **more)
    assert same_bits(recv_x[: len(inputs.received(rank, inputs.x))], inputs.received(rank, inputs.x))
    return handle


def test_ranks_tell_each_other_only_what_is_new(tells):
    def body(group):
        rank, buffer = group.rank, Buffer(group)
        with tells(1):
            first = check(buffer, INPUTS, rank)
        with tells(0):
            check_combine(buffer, INPUTS, rank, check(buffer, INPUTS, rank))
            assert same_bits(buffer.dispatch(INPUTS.x[rank], handle=first)[0], INPUTS.received(rank, INPUTS.x))
            check(buffer, INPUTS, rank, num_worst_tokens=3 * 16)  # the exchange has room for 16
        with tells(1):
            check(buffer, INPUTS, rank, num_worst_tokens=3 * 16 - 1 if rank == 1 else 0)  # may be too few rows
        with tells(1):
            second = check(buffer, MORE, rank)  # 40 tokens on rank 1 only
        with tells(0):
            check_combine(buffer, INPUTS, rank, check(buffer, INPUTS, rank))
            check_combine(buffer, MORE, rank, second)
            check_combine(buffer, INPUTS, rank, first)
        with tells(1):
            buffer.dispatch(INPUTS.x[rank], handle=first)  # a handle of the exchange that was outgrown

    ferry.run_threads(3, body, deadline=30.0)


def test_two_types_in_turns(tells):
    def body(group):
        rank, buffer = group.rank, Buffer(group)
        handle = check(buffer, INPUTS, rank)
        wide = [x.float() for x in INPUTS.x]
        for _ in range(2):
            for times in (1, 0):  # another type than before; the same again
                with tells(times):
                    assert same_bits(buffer.dispatch(wide[rank], handle=handle)[0], INPUTS.received(rank, wide))
            for times in (1, 0):
                with tells(times):
                    handle = check(buffer, INPUTS, rank)

    ferry.run_threads(3, body, deadline=30.0)


@pytest.mark.parametrize("wrong", ["a handle", "an argument", "an alignment", "experts", "no ids", "a combine"])
def test_one_rank_that_does_something_else_is_told_at_once(wrong):
    def another(buffer, rank, handle):
        if wrong == "a handle":
            return buffer.dispatch(INPUTS.x[rank], handle=handle)
        if wrong == "a combine":
            return buffer.combine(outputs_of(INPUTS)[rank], handle)
        more = {"an argument": dict(topk_weights=torch.full((9, 2), float("nan"))), "no ids": dict(with_topk=False),
                "an alignment": dict(expert_alignment=0),
                "experts": dict(num_tokens_per_expert=torch.zeros(7, dtype=torch.int32))}
        if wrong == "experts":
            layout = buffer.get_dispatch_layout(INPUTS.topk_idx[rank], 7)
            more[wrong].update(num_tokens_per_rank=layout[0], is_token_in_rank=layout[3])
        return send(buffer, INPUTS, rank, **more[wrong])

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        handle = check(buffer, INPUTS, rank)
        error = ferry.Mismatch
        if wrong in ("an argument", "an alignment"):  # found by the exchange, and by the front
            error = ferry.InvalidArgument if rank == 1 else ferry.PeerRejected
        with pytest.raises(error):
            another(buffer, rank, handle) if rank == 1 else send(buffer, INPUTS, rank)
        check_combine(buffer, INPUTS, rank, check(buffer, INPUTS, rank))

    ferry.run_threads(3, body, deadline=20.0)


def test_ranks_without_ids_have_equally_many_experts():
    """The rule includes ranks with nothing to send, because their next tokens would not fit."""

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        check(buffer, INPUTS, rank, with_topk=False)
        experts = torch.zeros(7 if rank == 2 else 6, dtype=torch.int32)
        with pytest.raises(ferry.Mismatch, match="num_tokens_per_expert"):
            send(buffer, INPUTS, rank, with_topk=False, num_tokens_per_expert=experts)
        check(buffer, INPUTS, rank, with_topk=False)

    ferry.run_threads(3, body, deadline=20.0)
