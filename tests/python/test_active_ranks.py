"""Operations in which only some of the ranks take part."""

import time

import pytest

import ferry

torch = pytest.importorskip("torch", reason="torch is not installed: tensors of torch are not tested")


def test_a_rank_outside_the_active_set_makes_the_same_calls():
    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=2, num_experts=3, top_k=1, dtype="float32")
        rows = exchange.dispatch(torch.ones(2, 2), torch.tensor([[0], [2]]), active_ranks=[0, 2])
        result = exchange.combine(rows.rows, rows.handle, torch.ones(2, 1))
        assert rows.rows.shape == (rows.num_rows, 2) and rows.rows.dtype == result.dtype == torch.float32
        return rows.num_rows, result.tolist()

    both = [[1.0, 1.0], [1.0, 1.0]]
    assert ferry.run_threads(3, body) == [(2, both), (0, []), (2, both)]


@pytest.mark.parametrize("topology", ["", "host:3,rank:1"])
def test_a_rank_outside_whose_dispatch_is_refused_refuses_the_combine_that_follows(topology):
    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=2, num_experts=3, top_k=1, dtype="float32")
        tokens, ids, active = torch.ones(2, 2), torch.tensor([[0], [1]]), [0, 1]
        if group.rank == 2:
            with pytest.raises(ferry.InvalidArgument):
                exchange.dispatch(torch.ones(2, 4)[:, ::2], ids, active_ranks=active)
            exchange.refuse_combine("its dispatch was refused", active)
        else:
            rows = exchange.dispatch(tokens, ids, active_ranks=active)
            exchange.combine(rows.rows, rows.handle, torch.ones(2, 1))
        rows = exchange.dispatch(tokens, ids)
        return exchange.combine(rows.rows, rows.handle, torch.ones(2, 1)).tolist()

    assert ferry.run_threads(3, body, topology=topology) == [[[1.0, 1.0], [1.0, 1.0]]] * 3


SUBSET_COMBINES = {
    "a type of rows": lambda rows, handle: ((rows.double(), handle), {}),
    "a shape of bias": lambda rows, handle: ((rows, handle), {"bias": torch.zeros(5)}),
    "an unknown keyword": lambda rows, handle: ((rows, handle), {"biass": None}),
    "a handle under a wrong name": lambda rows, handle: ((rows,), {"handel": handle}),
    "a handle of a type": lambda rows, handle: ((rows, 3), {}),
    "an unknown name in dispatched": lambda rows, handle: ((rows,), {"dispatched": {"token": rows}}),
    "rows of another width that need a gradient": None,
}


@pytest.mark.parametrize("topology", ["", "host:3,rank:1"])
@pytest.mark.parametrize("why", SUBSET_COMBINES)
def test_a_combine_of_a_subset_that_is_refused_waits_for_no_other_rank(why, topology):
    import ferry.torch

    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=2, num_experts=3, top_k=1, dtype="float32")
        tokens, ids = torch.ones(2, 2), torch.tensor([[0], [1]])
        for active in (None, [0, 1]):
            if active is None or group.rank in active:
                received = exchange.dispatch(tokens, ids, active_ranks=active)
        if group.rank == 2:
            return
        began = time.monotonic()
        with pytest.raises((ferry.InvalidArgument, ferry.PeerRejected, TypeError)):
            if SUBSET_COMBINES[why] is None:
                ferry.torch.combine(exchange, torch.ones(received.num_rows, 1, requires_grad=True), received.handle)
            else:
                arguments, keywords = SUBSET_COMBINES[why](received.rows, received.handle)
                exchange.combine(*arguments, **keywords)
        assert time.monotonic() - began < 4
        again = exchange.dispatch(tokens, ids, active_ranks=[0, 1])
        assert exchange.combine(again.rows, again.handle).shape == (2, 2)

    ferry.run_threads(3, body, deadline=10, topology=topology)
