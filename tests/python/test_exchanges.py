"""ferry.exchanges: ranks whose dispatches differ in their settings learn it at once, whether an exchange of these
settings is known or new, and the group stays usable."""

import time

import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry.exchanges import Exchanges

FIRST = dict(hidden=8, num_experts=4, top_k=2, dtype=torch.float32)
OTHERS = {"dtype": dict(FIRST, dtype=torch.bfloat16), "top_k": dict(FIRST, top_k=1), "hidden": dict(FIRST, hidden=16)}
DEADLINE = 60.0  # far longer than any of these calls takes, also on a busy machine


def call(exchanges, rank, num_tokens=3, ids=None, **settings):
    """A dispatch of this rank; returns the number of rows that came."""
    tokens = torch.full((num_tokens, settings["hidden"]), float(rank), dtype=settings["dtype"])
    if ids is None:
        ids = torch.arange(settings["top_k"]).expand(num_tokens, -1).contiguous()
    exchange, received = exchanges.dispatch(lambda known: known.dispatch(tokens, ids), num_tokens, **settings)
    assert exchange.config["max_tokens"] >= num_tokens and exchange.config["hidden"] == settings["hidden"]
    return len(received.rows)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_on_one_rank(name, known):
    def body(group):
        rank, exchanges = group.rank, Exchanges(group)
        settings = [FIRST, OTHERS[name]]
        for each in settings if known else settings[:1]:
            call(exchanges, rank, **each)
        begin = time.monotonic()
        with pytest.raises(ferry.Mismatch, match=f"rank 0 dispatches with .*{name}=.*; rank 2 with .*{name}="):
            call(exchanges, rank, **settings[rank == 2])
        assert time.monotonic() - begin < DEADLINE / 2
        assert [call(exchanges, rank, **each) for each in settings] == [9 * each["top_k"] if rank == 0 else 0
                                                                        for each in settings]

    ferry.run_threads(3, body, deadline=DEADLINE)


def test_an_exchange_that_grows_for_one_rank():
    def body(group):
        rank, exchanges = group.rank, Exchanges(group)
        made = []
        for num_tokens in (3, 20 if rank == 1 else 0, 4, 33 if rank == 0 else 5):
            call(exchanges, rank, num_tokens, **FIRST)
            made.append(exchanges.meeting.config["max_tokens"])
        assert made == [4, 32, 32, 64]

    ferry.run_threads(3, body, deadline=DEADLINE)


def test_a_rank_that_cannot_call():
    def body(group):
        rank, exchanges = group.rank, Exchanges(group)
        call(exchanges, rank, **FIRST)
        for settings in (FIRST, OTHERS["dtype"]):  # in the exchange of the dispatch before, and in a new one
            kind, wrong = (ferry.InvalidArgument, torch.full((3, 2), 9)) if rank == 1 else (ferry.PeerRejected, None)
            with pytest.raises(kind, match=r"outside \[-1, 4\)"):
                call(exchanges, rank, ids=wrong, **settings)
            call(exchanges, rank, **FIRST)

    ferry.run_threads(3, body, deadline=DEADLINE)


def test_closing():
    def body(group):
        exchanges = Exchanges(group)
        call(exchanges, group.rank, **FIRST)
        exchange = exchanges.meeting
        exchanges.close()
        with pytest.raises(ferry.Error):
            exchange.dispatch(torch.ones(3, 8), torch.zeros(3, 2, dtype=torch.int64))

    ferry.run_threads(2, body, deadline=DEADLINE)
