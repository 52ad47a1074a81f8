"""Checks and settings of every differentiable call."""

import functools
import sys
from typing import Any, Callable, TypeVar, cast

import torch

from ferry import InvalidArgument

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """A decorator that makes torch.compile (since torch 2.1) run a function uncompiled, between two compiled graphs,
    since torch.compile cannot compile native calls.

    torch's decorator loads the compiler at its first call, which takes seconds. So it is only called in a process that
    has loaded the compiler already.
    """
    opaque = getattr(torch, "_disable_dynamo", lambda same: same)(function)

    @functools.wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        return (opaque if "torch._dynamo" in sys.modules else function)(*args, **arguments)

    return cast(Function, call)


def checked_linear(exchange):
    """Returns the exchange. Raises InvalidArgument when it does more than move and add rows. All ranks have the same
    config, so all of them raise."""
    needed = {"wire": "none", "combine_wire": "none", "copy_experts": 0, "constant_experts": 0}
    for name, value in needed.items():
        if exchange.config[name] != value:
            raise InvalidArgument(f"ferry.torch needs an exchange with {name}={value!r}, not {exchange.config[name]!r}")
    return exchange
