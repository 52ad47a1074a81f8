"""Wrong calls: type checkers must refuse each line that is marked, and no other. See right.py."""

import ferry
import numpy as np
import torch


def body(group: ferry.Group, greeting: str) -> int:
    group.exchange(max_tokens=16, hiden=64, num_experts=8, top_k=2)  # wrong: hidden
    group.exchange(max_tokens=16, hidden=64, top_k=2)  # wrong: no num_experts
    group.exchange(max_tokens="16", hidden=64, num_experts=8, top_k=2)  # wrong: text
    group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2, layout="expert")  # wrong: no such layout
    group.gather(b"")  # wrong: all_gather
    exchange = group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2)
    exchange.dispatch([1.0, 2.0], np.zeros((1, 2), np.int64))  # wrong: a list is no array
    exchange.dispatch(np.zeros((1, 64)), np.zeros((1, 2)), np.zeros((1, 2)), np.zeros(1))  # wrong: handle by name
    received = exchange.dispatch(torch.zeros(1, 64), torch.zeros(1, 2))
    received.row  # wrong: rows
    rows: np.ndarray = received.rows  # wrong: a tensor
    exchange.combine(rows, received)  # wrong: received.handle
    exchange.combine(rows, received.handle, partials="rank")  # wrong: per_rank
    exchange.config["hiden"]  # wrong: hidden
    return exchange.stats().rows  # wrong: rows_sent


ferry.init(addres="here", rank=0, size=1)  # wrong: address
ferry.run_threads("2", body, "hello")  # wrong: a number
ferry.run_threads(2, body)  # wrong: no greeting
ferry.spawn(2, body, 3)  # wrong: greeting is text
texts: list[str] = ferry.spawn(2, body, "hello")  # wrong: numbers
ferry.plan(3)  # wrong: a text or a dict
