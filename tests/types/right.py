"""Right calls and the types that checkers must find in them. Checked by scripts/test.sh, step types; never run."""

from typing import Any

import ferry
import ferry.moe
import ferry.torch
import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Unpack, assert_type


def settings_are_handed_on(group: ferry.Group, **settings: Unpack[ferry.Settings]) -> ferry.Exchange:
    return group.exchange(**settings)


def with_numpy(exchange: ferry.Exchange, tokens: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[Any]:
    received = exchange.dispatch(tokens, ids, deadline=2)
    assert_type(received, ferry.Received[NDArray[Any]])
    assert_type(received.rows, NDArray[Any])
    counts: NDArray[np.int64] = received.handle.tokens_per_expert
    operation = exchange.combine_send(received.rows, received.handle, counts)
    assert_type(operation.recv(), NDArray[Any])
    return exchange.combine(received.rows, received.handle, np.ones((16, 2), np.float32), bias=[tokens])


def with_torch(exchange: ferry.Exchange, tokens: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    operation = exchange.dispatch_send(tokens, ids)
    received = operation.recv()
    assert_type(received.rows, torch.Tensor)
    assert_type(received.weights, "torch.Tensor | None")
    assert_type(received.handle, ferry.Handle[torch.Tensor])
    assert_type(ferry.torch.dispatch(exchange, tokens, ids).rows, torch.Tensor)
    return exchange.combine(received.rows, received.handle)


def layer(group: ferry.Group, tokens: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> ferry.torch.MoE:
    made = ferry.torch.MoE(group, hidden=64, intermediate=32, num_experts=8, top_k=2, max_tokens=16)
    made(tokens, ids, weights, active_ranks=[0]).sum().backward()
    return made


def body(group: ferry.Group, greeting: str) -> int:
    exchange = group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2, dtype="float32", layout="padded")
    assert_type(exchange.config["hidden"], int)
    assert_type(exchange.stats().rows_sent, int)
    return len(greeting)


with ferry.init(deadline=5) as joined:
    assert_type(joined, ferry.Group)
assert_type(ferry.moe.pair(lambda: 1, lambda: "out"), tuple[int, str])
assert_type(ferry.run_threads(2, body, "hello", deadline=5), list[int])
assert_type(ferry.spawn(2, body, "hello"), list[int])
assert_type(ferry.window_bytes(8, max_tokens=16, hidden=64, num_experts=8, top_k=2).worst, int)
