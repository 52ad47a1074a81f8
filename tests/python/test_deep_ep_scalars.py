"""Numbers and switches of ferry.deep_ep: odd ones are refused on all ranks, with name, value and limit, and the buffer
goes on; integers and bools of numpy are taken."""

import inspect
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry.deep_ep import Buffer, Config, ElasticBuffer
from ferry.deep_ep.ep_buffer import EPBuffer

E, K, H, M = 6, 2, 128, 9
ODD_NUMBERS = (10**30, -1, 2.0, True, torch.tensor(2), torch.zeros(2), "2", np.float64(2))
ODD_SWITCHES = (torch.tensor(True), torch.zeros(2), "yes", 2, 1.0, np.zeros(2), object())
NUMBERS = {"expert_alignment": 4, "num_worst_tokens": 100, "num_max_dispatch_tokens_per_rank": M, "num_experts": E,
           "num_max_tokens_per_rank": M, "num_sms": 4, "num_qps": 1}
SWITCHES = ("async_finish", "allocate_on_comm_stream", "use_fp8", "round_scale", "use_ue8m0", "return_recv_hook",
            "use_logfmt", "zero_copy", "async_with_compute_stream", "do_handle_copy", "do_cpu_sync", "do_expand",
            "do_zero_padding", "use_tma_aligned_col_major_sf", "defer_epilogue")


class Normal:
    """Calls of one rank: `dispatch` and `combine` with keywords beside those that are right."""

    def __init__(self, group):
        self.buffer = Buffer(group)
        rank = group.rank
        self.x = torch.full((M - rank, H), float(rank), dtype=torch.bfloat16)
        self.ids = (torch.arange((M - rank) * K).view(-1, K) + rank) % E
        self.weights = torch.ones(M - rank, K)

    def dispatch(self, **more):
        per_rank, _, per_expert, mask, _ = self.buffer.get_dispatch_layout(self.ids, E)
        self.recv, *_, self.handle, _ = self.buffer.dispatch(
            self.x, num_tokens_per_rank=per_rank, is_token_in_rank=mask, num_tokens_per_expert=per_expert,
            topk_idx=self.ids, topk_weights=self.weights, **more)

    def combine(self, **more):
        self.buffer.combine(self.recv, self.handle, **more)


class Cached(Normal):
    def __init__(self, group):
        super().__init__(group)
        super().dispatch()
        self.first = self.handle

    def dispatch(self, **more):
        self.buffer.dispatch(self.x, handle=self.first, **more)


class LowLatency(Normal):
    def dispatch(self, **more):
        given = dict(num_max_dispatch_tokens_per_rank=M, num_experts=E, use_fp8=False)
        self.recv, _, self.handle, _, hook = self.buffer.low_latency_dispatch(self.x, self.ids, **{**given, **more})
        if hook is not None:
            hook()

    def combine(self, **more):
        self.buffer.low_latency_combine(self.recv, self.ids, self.weights, self.handle, **more)


class Elastic(Normal):
    kind = ElasticBuffer

    def __init__(self, group):
        super().__init__(group)
        self.buffer = self.kind(group)

    def dispatch(self, **more):
        given = dict(num_experts=E, num_max_tokens_per_rank=M)
        self.recv, _, _, self.handle, _ = self.buffer.dispatch(self.x, self.ids, self.weights, **{**given, **more})


class Deferred(Elastic):
    kind = EPBuffer


FRONTS = {"normal": (Normal, Buffer.dispatch, Buffer.combine), "cached": (Cached, Buffer.dispatch, None),
          "low_latency": (LowLatency, Buffer.low_latency_dispatch, Buffer.low_latency_combine),
          "elastic": (Elastic, ElasticBuffer.dispatch, ElasticBuffer.combine),
          "2.5": (Deferred, EPBuffer.dispatch, EPBuffer.combine)}


def cases(call):
    """(name, odd value) of a call's numbers and switches."""
    for name in inspect.signature(call).parameters if call else ():
        odd = ODD_NUMBERS if name in NUMBERS else ODD_SWITCHES if name in SWITCHES else ()
        yield from ((name, value) for value in odd)


@pytest.mark.parametrize("front", FRONTS)
def test_odd_ones_are_refused_on_all_ranks(front):
    make, dispatch, combine = FRONTS[front]

    def body(group):
        calls = make(group)
        calls.dispatch()
        calls.combine()

        def refused(call, name, value):
            began = time.monotonic()
            mine = group.rank == 1
            with pytest.raises(ferry.InvalidArgument if mine else ferry.PeerRejected, match=f"{name} is ") as caught:
                call(**({name: value} if mine else {}))
            assert f"need {'True or False' if name in SWITCHES else ''}" in str(caught.value)
            assert time.monotonic() - began < 20, (name, value)

        for name, value in cases(dispatch):
            refused(calls.dispatch, name, value)
        calls.dispatch()
        for name, value in cases(combine):
            refused(calls.combine, name, value)
        calls.combine()

    ferry.run_threads(3, body, deadline=30.0)


@pytest.mark.parametrize("front", FRONTS)
def test_numbers_of_numpy_are_taken(front):
    make, dispatch, _ = FRONTS[front]

    def body(group):
        calls = make(group)
        given = {name: np.int64(NUMBERS[name]) for name in inspect.signature(dispatch).parameters if name in NUMBERS}
        calls.dispatch(**given)
        calls.dispatch()

    ferry.run_threads(3, body, deadline=30.0)


def test_numbers_beyond_what_there_is_room_for():
    """The largest number that is taken, on all ranks: refused by the exchange, which names its own limit."""

    def body(group):
        for make, name in ((LowLatency, "num_max_dispatch_tokens_per_rank"), (Elastic, "num_max_tokens_per_rank")):
            calls = make(group)
            with pytest.raises(ferry.Error, match="2147483648|2147483647|2\\^31"):
                calls.dispatch(**{name: 2**31 - 1})
            calls.dispatch()

    ferry.run_threads(3, body, deadline=30.0)


LOCAL = {
    "get_dispatch_layout": (("async_finish", "allocate_on_comm_stream"), ("num_experts",)),
    "low_latency_update_mask_buffer": (("mask",), ("rank_to_mask",)),
    "get_local_buffer_tensor": (("use_rdma_buffer",), ("offset",)),
    "clean_low_latency_buffer": ((), ("num_max_dispatch_tokens_per_rank", "hidden", "num_experts")),
    "get_low_latency_rdma_size_hint": ((), ("num_max_dispatch_tokens_per_rank", "hidden", "num_ranks", "num_experts")),
    "set_num_sms": ((), ("new_num_sms",)),
    "get_dispatch_config": ((), ("num_ranks",)),
    "get_combine_config": ((), ("num_ranks",)),
}
RIGHT = dict(topk_idx=torch.zeros(2, 2).long(), num_experts=6, rank_to_mask=0, dtype=torch.uint8, hidden=128,
             num_max_dispatch_tokens_per_rank=4, num_ranks=2, mask=False)


@pytest.mark.parametrize("name", LOCAL)
def test_local_calls(name):
    switches, numbers = LOCAL[name]

    def body(group):
        call = getattr(Buffer(group, 1000, enable_shrink=True), name)
        taken = inspect.signature(call).parameters
        right = {key: value for key, value in RIGHT.items() if key in taken}
        if "new_num_sms" not in taken:
            call(**right)
        for wrong, odd, need in ((switches, ODD_SWITCHES, "True or False"), (numbers, ODD_NUMBERS, "[01] to [0-9]+")):
            for each in wrong:
                for value in odd:
                    with pytest.raises(ferry.InvalidArgument, match=f"{each.replace('new_', '')} is .*, need {need}"):
                        call(**{**right, each: value})

    ferry.run_threads(1, body)


@pytest.mark.parametrize("kind", [Buffer, ElasticBuffer, EPBuffer])
def test_constructors(kind):
    skipped = ("self", "group", "comm", "sl_idx")  # not a number that anything is made of

    def body(group):
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            for value in () if name in skipped else (10**30, torch.zeros(2), "2", -1):
                with pytest.raises(ferry.InvalidArgument, match=f"{name} is .*, need "):
                    kind(group, **{name: value})

    ferry.run_threads(1, body)


def test_config():
    for name in inspect.signature(Config).parameters:
        for value in ODD_NUMBERS:
            with pytest.raises(ferry.InvalidArgument, match=f"{name} is .*, need 0 to 2147483647"):
                Config(**{name: value})
    config = Config(np.int32(8))
    for hint in (config.get_nvl_buffer_size_hint, config.get_rdma_buffer_size_hint):
        for name, value in (("hidden_bytes", 10**30), ("num_ranks", 0)):
            with pytest.raises(ferry.InvalidArgument, match=f"{name} is {value}, need"):
                hint(**{**dict(hidden_bytes=256, num_ranks=8), name: value})


def test_an_int_without_a_text():
    with pytest.raises(ferry.InvalidArgument, match="num_sms is of type int, need 0 to 2147483647"):
        Config(10**5000)
