"""Checks and settings of every differentiable call."""

import functools
import sys
from typing import Any, Callable, TypeVar, cast

import torch

from ferry import InvalidArgument

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """torch.compile cannot compile native calls: it runs them unchanged, between its graphs. (Since torch 2.1.)

    torch's decorator loads the compiler at its first call, which takes seconds. So it is only called in a process that
    has loaded the compiler already.
    """
    opaque = getattr(torch, "_disable_dynamo", lambda same: same)(function)

    @functools.wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        return (opaque if "torch._dynamo" in sys.modules else function)(*args, **arguments)

    return cast(Function, call)


def checked_linear(exchange):
    """The exchange. Raises InvalidArgument when it does more than move and add rows, on all ranks, as all have the same
    config."""
    needed = {"wire": "none", "combine_wire": "none", "copy_experts": 0, "constant_experts": 0}
    for name, value in needed.items():
        if exchange.config[name] != value:
            raise InvalidArgument(f"ferry.torch needs an exchange with {name}={value!r}, not {exchange.config[name]!r}")
    return exchange
