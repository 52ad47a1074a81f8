"""A tensor that has a shape but no memory is never taken for an argument that was not given: every tensor argument of
every front is tried. Either the call is refused by name on all ranks, or its results are those of the elements."""

import os

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
import ferry.moe  # noqa: E402
import ferry.torch  # noqa: E402
from ferry import torch_npu  # noqa: E402
from ferry.deep_ep import Buffer, ElasticBuffer  # noqa: E402

T, H, E, K = 4, 128, 4, 2
WRONG = 1  # the rank that gives a tensor without memory


class Wrapper(torch.Tensor):
    """A tensor around another one, like DTensor: the results of operations on it are such tensors too."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def bare(value):
            return value.inner if isinstance(value, Wrapper) else value

        args, kwargs = torch.utils._pytree.tree_map(bare, (args, kwargs or {}))
        made = function(*args, **kwargs)
        return torch.utils._pytree.tree_map(lambda one: Wrapper(one) if torch.is_tensor(one) else one, made)


def emptied(tensor):
    """A part of a storage that lost its memory: torch gives an address that is small, but not null."""
    storage = torch.empty(1 + tensor.numel(), dtype=tensor.dtype)
    part = storage[1:].view(tensor.shape)
    storage.untyped_storage().resize_(0)
    return part


def fake(tensor):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(tensor)


KINDS = {"a wrapper": Wrapper, "a fake tensor": fake, "an emptied storage": emptied}


# ---- fronts: each returns {name: (call(**arguments) -> tensors, arguments)} of its calls; all calls are collective


def ids_of(dtype=torch.int64):
    return torch.tensor([[t % E, (t + 1) % E] for t in range(T)], dtype=dtype)


def weights():
    return torch.full((T, K), 3.0)


def engine(group):
    config = dict(max_tokens=T, hidden=H, num_experts=E, top_k=K, dtype="float32")
    plain, held = group.exchange(**config), group.exchange(**config)
    scaled = group.exchange(**{**config, "wire": "int8"})
    opaque = group.exchange(max_tokens=T, hidden=H, num_experts=E, top_k=K, dtype="uint8", scale_bytes=4)
    rows = held.dispatch(torch.ones(T, H), ids_of(), weights())

    def received(exchange):
        def call(**arguments):
            received = exchange.dispatch(**arguments)
            return received.rows, received.weights
        return call

    def combined(**arguments):
        arguments["expert_rows"] = arguments["expert_rows"] if arguments["expert_rows"] is not None else rows.rows
        out = held.combine(handle=rows.handle, **arguments)
        return out, arguments.get("out_topk_weights"), arguments.get("y"), arguments.get("rstd")

    given = dict(tokens=torch.ones(T, H), topk_ids=ids_of(), topk_weights=weights())
    masks = dict(token_mask=torch.tensor([True, False, True, True]), topk_mask=torch.ones(T, K, dtype=torch.bool))
    n = len(rows.rows)
    return {
        "dispatch": (received(plain), {**given, **masks}),
        "dispatch with factors": (received(scaled), {**given, "scales": torch.ones(1, H)}),
        "dispatch of bytes": (received(opaque), {**given, "tokens": torch.ones(T, H, dtype=torch.uint8),
                                                 "token_scales": torch.ones(T, 4, dtype=torch.uint8)}),
        "combine": (combined, dict(expert_rows=torch.ones(n, H), topk_weights=weights(), bias=torch.ones(T, H),
                                   shared_output=torch.ones(T, H), out=torch.zeros(T, H),
                                   row_weights=rows.weights.clone(),
                                   out_topk_weights=torch.zeros(T, K))),
        "combine with a norm": (combined, dict(expert_rows=torch.ones(n, H), topk_weights=weights(),
                                               residual=torch.ones(T, H), gamma=torch.ones(H), y=torch.zeros(T, H),
                                               rstd=torch.zeros(T))),
    }


def with_torch(group):
    exchange = group.exchange(max_tokens=T, hidden=H, num_experts=E, top_k=K, dtype="float32")
    handles = {}

    def dispatched(tokens, topk_ids, topk_weights):
        got = ferry.torch.dispatch(exchange, tokens, topk_ids, topk_weights)
        handles["handle"] = got.handle
        return got.rows, got.weights

    dispatched(torch.ones(T, H), ids_of(), weights())
    n = len(exchange.dispatch(torch.ones(T, H), ids_of()).rows)
    given = dict(tokens=torch.ones(T, H), topk_ids=ids_of(), topk_weights=weights())
    return {
        "ferry.torch.dispatch": (dispatched, given),
        "ferry.torch.combine": (lambda expert_rows, topk_weights: (ferry.torch.combine(
            exchange, expert_rows, handles["handle"], topk_weights),),
            dict(expert_rows=torch.ones(n, H), topk_weights=weights())),
        "ferry.moe": (lambda tokens, topk_ids, topk_weights: (ferry.moe.moe(
            exchange, tokens, topk_ids, topk_weights, lambda rows, counts, out=None: rows * 2),), given),
    }


def deep_ep(group):
    buffer = Buffer(group)
    layout = buffer.get_dispatch_layout(ids_of(), E)
    arguments = dict(x=torch.ones(T, H), topk_idx=ids_of(), topk_weights=weights(), num_tokens_per_rank=layout[0],
                     num_tokens_per_expert=layout[2], is_token_in_rank=layout[3])
    received, _, _, _, handle, _ = buffer.dispatch(**arguments)
    n = len(received)

    def low_latency(x, topk_idx):
        return buffer.low_latency_dispatch(x, topk_idx, T, E, use_fp8=False)[:2]

    low = buffer.low_latency_dispatch(torch.ones(T, H, dtype=torch.bfloat16), ids_of(), T, E, use_fp8=False)
    return {
        "dispatch": (lambda **given: buffer.dispatch(**given)[:3], arguments),
        "combine": (lambda **given: buffer.combine(handle=handle, **given)[:2],
                    dict(x=torch.ones(n, H), topk_weights=torch.ones(n, K), bias=torch.ones(T, H))),
        "low_latency_dispatch": (low_latency, dict(x=torch.ones(T, H, dtype=torch.bfloat16), topk_idx=ids_of())),
        "low_latency_combine": (lambda **given: buffer.low_latency_combine(handle=low[2], **given)[:1],
                                dict(x=torch.ones_like(low[0]), topk_idx=ids_of(), topk_weights=weights(),
                                     out=torch.zeros(T, H, dtype=torch.bfloat16))),
    }


def elastic(group):
    buffer = ElasticBuffer(group, num_max_tokens_per_rank=T, num_gpu_timeout_secs=30)
    given = dict(x=torch.ones(T, H, dtype=torch.bfloat16), topk_idx=ids_of(), topk_weights=weights())
    received = buffer.dispatch(**given, num_experts=E)
    rows, handle = received[0], received[3]
    return {
        "dispatch": (lambda **given: buffer.dispatch(**given, num_experts=E)[:3], given),
        "combine": (lambda **given: buffer.combine(handle=handle, **given)[:1], dict(x=torch.ones_like(rows))),
    }


def npu(group):
    context = torch_npu.register_group("ep", group)
    context.__enter__()
    same = dict(group_ep="ep", ep_world_size=group.size, ep_rank_id=group.rank, moe_expert_num=E)

    def dispatched(**given):
        return torch_npu.npu_moe_distribute_dispatch_v2(**given, **same)[:2]

    given = dict(x=torch.ones(T, H, dtype=torch.bfloat16), expert_ids=ids_of(torch.int32), expert_scales=weights(),
                 x_active_mask=torch.tensor([True, True, True, False]))
    out = torch_npu.npu_moe_distribute_dispatch_v2(**given, **same)
    return {
        "dispatch": (dispatched, given),
        "combine": (lambda **given: (torch_npu.npu_moe_distribute_combine_v2(**given, **same),),
                    dict(expand_x=torch.ones_like(out[0]), expert_ids=ids_of(torch.int32),
                         assist_info_for_combine=out[2],
                         ep_send_counts=out[4], expert_scales=weights(), x_active_mask=given["x_active_mask"],
                         shared_expert_x=torch.ones(T, H, dtype=torch.bfloat16))),
    }


FRONTS = {"ferry": engine, "ferry.torch": with_torch, "deep_ep": deep_ep, "deep_ep elastic": elastic, "torch_npu": npu}


def copied(arguments):
    return {name: value.clone() if torch.is_tensor(value) else value for name, value in arguments.items()}


def same(made, right):
    return all(one is None or torch.equal(torch.as_tensor(one), torch.as_tensor(two))
               for one, two in zip(made, right) if torch.is_tensor(two))


def outcome(call, arguments):
    """(the results, None) or (None, the refusal)"""
    try:
        return tuple(call(**arguments)), None
    except ferry.Error as error:
        return None, error


@pytest.mark.parametrize("front", FRONTS)
def test_every_tensor_argument(front):
    tried = []

    def body(group):
        for name, (call, arguments) in FRONTS[front](group).items():
            right = [one.clone() if torch.is_tensor(one) else one for one in call(**copied(arguments))]
            for argument in [key for key, value in arguments.items() if torch.is_tensor(value)]:
                for kind, make in KINDS.items():
                    what = f"{front}: {name}, {argument} is {kind}"
                    given = copied(arguments)
                    if group.rank == WRONG:
                        given[argument] = make(given[argument])
                    made, refusal = outcome(call, given)
                    if refusal is None:
                        assert group.rank != WRONG or same(made, right), f"{what}: other results"
                    elif group.rank == WRONG:
                        assert isinstance(refusal, ferry.InvalidArgument), f"{what}: {refusal!r}"
                        tried.append(what)
                    else:
                        assert isinstance(refusal, ferry.PeerRejected), f"{what}: {refusal!r}"
                    again = call(**copied(arguments))
                    assert same(again, right), f"{what}: the call after it"

    ferry.run_threads(2, body, deadline=20.0)
    assert tried


def test_what_a_functional_collective_returns_is_waited_for():
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        def body(group):
            exchange = group.exchange(max_tokens=T, hidden=H, num_experts=E, top_k=K, dtype="float32")
            received = exchange.dispatch(torch.ones(T, H), ids_of())
            given = collectives.all_gather_tensor(weights(), 0, dist.group.WORLD)
            return exchange.combine(received.rows, received.handle, given)

        assert torch.equal(ferry.run_threads(1, body)[0], torch.full((T, H), 6.0))
    finally:
        dist.destroy_process_group()


def test_an_empty_tensor_is_given():
    """torch puts an empty tensor at a null address. Rank 1 has no token; in the end no rank has one."""

    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=4, num_experts=2, top_k=1, dtype="float32")
        count = 2 if group.rank == 0 else 0
        tokens, ids = torch.ones(count, 4), torch.zeros(count, 1, dtype=torch.int64)
        received = exchange.dispatch(tokens, ids, torch.ones(count, 1))
        y, rstd = torch.empty(count, 4), torch.empty(count)
        out = exchange.combine(received.rows, received.handle, residual=torch.ones(count, 4), gamma=torch.ones(4), y=y,
                               rstd=rstd, row_weights=received.weights, out_topk_weights=torch.empty(count, 1))
        assert out.shape == (count, 4) and torch.equal(out, torch.full((count, 4), 2.0))
        return group.rank

    assert ferry.run_threads(2, body) == [0, 1]


@pytest.mark.parametrize("layout", ["expert_major", "padded", "rank_major"])
@pytest.mark.parametrize("weighted", [True, False])
def test_weights_of_no_token_anywhere_are_there_if_they_are_given(layout, weighted):
    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=4, num_experts=2, top_k=1, dtype="float32", layout=layout)
        tokens, ids = torch.empty(0, 4, requires_grad=True), torch.empty(0, 1, dtype=torch.int64)
        weights = torch.empty(0, 1, requires_grad=True) if weighted else None
        received = ferry.torch.dispatch(exchange, tokens, ids, weights)
        rows = received.rows
        if weighted:
            shape = received.sources.shape[:1] + ((1,) if layout == "rank_major" else ())
            assert received.weights.shape == shape
            rows = rows * received.weights.reshape(*rows.shape[:-1], 1)
        out = ferry.torch.combine(exchange, rows, received.handle)
        out.sum().backward()
        assert tokens.grad.shape == (0, 4)
        assert weights is None or weights.grad.shape == (0, 1)

    ferry.run_threads(2, body)
