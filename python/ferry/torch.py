"""Dispatch and combine that autograd can differentiate.

Both only move and add rows, so each is linear, and they are each other's transpose: the gradient of a dispatch is a
plain combine with its handle, that of a plain combine is a cached dispatch. A combine that weights the rows dispatches
its gradient unscaled; where the rows are, that gives weight * gradient, and the float32 dot of row and gradient, which
goes home as the gradient of the weight.

So backward() is as collective as the calls: all ranks call it, in the same order, on graphs that hold the same calls,
and what requires a gradient does so on all of them, those included that sent or received no row.

The exchange is a ferry.Exchange, or for tensors of a CUDA device a ferry.cuda.Exchange. MoE is a module of torch that
makes both calls and has the experts between them (ferry.moe).

T tokens of this rank, H hidden, K top-k, N rows received. Calls the exchange; called by ferry.moe.
"""

import functools
import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar, Union, cast

import torch

from ferry import Exchange, Handle, InvalidArgument
from ferry.turns import take

if TYPE_CHECKING:
    import ferry.cuda
    from ferry.data_parallel import clip_grad_norm_, ddp
    from ferry.moe import MoE
else:

    def __getattr__(name):
        """The layer, which calls this module, and what calls the layer are imported when they are asked for."""
        if name == "MoE":
            from ferry.moe import MoE

            return MoE
        if name in ("clip_grad_norm_", "ddp"):
            from ferry import data_parallel

            return getattr(data_parallel, name)
        raise AttributeError(f"module 'ferry.torch' has no attribute {name!r}")


__all__ = ["Dispatched", "MoE", "clip_grad_norm_", "combine", "ddp", "dispatch"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _uncompiled(function: Function) -> Function:
    """torch.compile cannot look into native calls: it runs them as they are, between its graphs. (Since torch 2.1.)

    torch's decorator loads the compiler at its first call, which takes seconds. So it is only called in a process that
    has loaded the compiler already.
    """
    opaque = getattr(torch, "_disable_dynamo", lambda same: same)(function)

    @functools.wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        return (opaque if "torch._dynamo" in sys.modules else function)(*args, **arguments)

    return cast(Function, call)


class Dispatched(NamedTuple):
    """What a dispatch received. Gradients flow through rows and weights."""

    rows: torch.Tensor  # [N, H], padded [L, C, H]; zeros where no token was placed
    weights: Optional[torch.Tensor]  # float32 [N], rank_major [N, K]; None without topk_weights
    handle: "Union[Handle, ferry.cuda.Handle]"
    sources: torch.Tensor  # int32 [N, 3]: source rank, token, k
    topk_ids: Optional[torch.Tensor]  # rank_major: int32 [N, K], local expert or -1; else None


@_uncompiled
def dispatch(
    exchange: "Union[Exchange, ferry.cuda.Exchange]",
    tokens: torch.Tensor,
    topk_ids: Optional[torch.Tensor] = None,
    topk_weights: Optional[torch.Tensor] = None,
    *,
    copy: bool = True,
    **routing: Any,
) -> Dispatched:
    """Sends tokens [T, H] to the ranks of their experts and returns Dispatched.

    Differentiable in tokens and in topk_weights, float32 [T, K], which arrive as `weights`: for experts that weight
    their rows themselves, as those of rank_major must; given by all ranks or by none. `routing`: more arguments of
    Exchange.dispatch, such as handle.

    copy: the results lie in torch's own memory, for as long as autograd wants them. False: they are views that pin a
    buffer of the window until the graph is gone, see Received.

    Raises InvalidArgument when the exchange does more than move rows (a wire, copy or constant experts), and what
    Exchange.dispatch raises.
    """
    routing["topk_ids"] = topk_ids
    return Dispatched(*_Dispatch.apply(_linear(exchange), tokens, topk_weights, copy, routing))


@_uncompiled
def combine(
    exchange: "Union[Exchange, ferry.cuda.Exchange]",
    rows: torch.Tensor,
    handle: "Union[Handle, ferry.cuda.Handle]",
    topk_weights: Optional[torch.Tensor] = None,
    *,
    out_dtype: Optional[torch.dtype] = None,
    **unknown,
) -> torch.Tensor:
    """Brings the rows [N, H] of the experts home; returns [T, H] of out_dtype, by default that of the rows.

    out[t] is the sum over k of topk_weights[t, k] * row of (t, k), or without topk_weights the plain sum.
    Rows that lie in the window are read in place: Exchange.may_write says when they may be written to again.

    Differentiable in rows and in topk_weights, float32 [T, K]. Gradients travel in the exchange's dtype. Weights that
    need a gradient make autograd keep the rows: those that lie in the window pin their buffer until backward.

    Raises InvalidArgument as dispatch does, and for rows that need a gradient and are not as wide as a token, on this
    rank, PeerRejected on the others; and what Exchange.combine raises.
    """
    if unknown:  # as Exchange.combine does
        message = f"combine() has no argument '{next(iter(unknown))}'"
        take(exchange.refuse_combine, message)
        raise TypeError(message)
    _check_width(_linear(exchange), rows, topk_weights)
    if topk_weights is None:
        return _Combine.apply(exchange, handle, rows, None, out_dtype)[0]
    return _WeightedCombine.apply(exchange, handle, rows, topk_weights, out_dtype)


class _Dispatch(torch.autograd.Function):
    """tokens [T, H], topk_weights [T, K] -> rows [N, H], weights [N]. The transpose of _Combine."""

    @staticmethod
    def forward(ctx, exchange, tokens, topk_weights, copy, routing):
        received = take(exchange.dispatch, _dense(tokens), topk_weights=_dense(topk_weights), **routing)
        ctx.exchange, ctx.handle, ctx.elsewhere = exchange, received.handle, None
        weights = None if topk_weights is None else received.weights
        if weights is not None and ctx.needs_input_grad[2]:
            if received.topk_ids is not None:
                ctx.elsewhere = received.topk_ids < 0
            if weights.is_cuda:
                received.keep_sources()  # which backward needs, to send the gradients of weights home
        results = [received.rows, weights, received.sources, received.topk_ids]
        _zero_gaps(exchange, received.handle, results[:2])
        if copy:
            results = [result if result is None else result.clone() for result in results]
        return (*results[:2], received.handle, *results[2:])

    @staticmethod
    def backward(ctx, grad_rows, grad_weights, *_):
        if ctx.elsewhere is not None:  # zeros, whatever the weights are; combine adds what every rank has of them
            grad_weights = grad_weights.masked_fill(ctx.elsewhere, 0)
        _check_backward(ctx.exchange)
        grads = _Combine.apply(ctx.exchange, ctx.handle, grad_rows, grad_weights, None)
        wanted = [grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad[1:])]
        return (None, *wanted, None, None)


class _Combine(torch.autograd.Function):
    """rows [N, H], row_weights [N] -> their sums [T, H], row_weights where they came from [T, K]."""

    @staticmethod
    def forward(ctx, exchange, handle, rows, row_weights, out_dtype):
        home = None if row_weights is None else row_weights.new_empty(handle.num_tokens, exchange.config["top_k"])
        weights = dict(row_weights=_dense(row_weights), out_topk_weights=home)
        out = take(exchange.combine, _dense(rows), handle, out_dtype=out_dtype, **weights)
        ctx.exchange, ctx.handle, ctx.shape = exchange, handle, rows.shape
        return out, home

    @staticmethod
    def backward(ctx, grad_out, grad_home):
        needs_rows = ctx.needs_input_grad[2]
        if not needs_rows:  # they were there for their weights, and may have had any width
            grad_out = grad_out.new_zeros(len(grad_out), ctx.exchange.config["hidden"])
        grad_rows, grad_row_weights = _dispatch_again(ctx, grad_out, grad_home)
        return None, None, grad_rows.view(ctx.shape) if needs_rows else None, grad_row_weights, None


class _WeightedCombine(torch.autograd.Function):
    """rows [N, H], topk_weights [T, K] -> weighted sums [T, H]."""

    @staticmethod
    def forward(ctx, exchange, handle, rows, topk_weights, out_dtype):
        out = take(exchange.combine, _dense(rows), handle, _dense(topk_weights), out_dtype=out_dtype)
        ctx.exchange, ctx.handle, ctx.shape, ctx.dtype = exchange, handle, rows.shape, rows.dtype
        ctx.save_for_backward(rows if ctx.needs_input_grad[3] else None, topk_weights)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        rows, topk_weights = ctx.saved_tensors
        grads, weights = _dispatch_again(ctx, grad_out, topk_weights)
        grads, weights = grads.view(ctx.shape).flatten(0, -2), weights.view(-1, 1)
        scaled = grads.new_empty(grads.shape, dtype=ctx.dtype) if ctx.needs_input_grad[2] else None
        dots = grads.new_empty(len(grads), dtype=torch.float32) if ctx.needs_input_grad[3] else None
        if rows is not None:
            rows = rows.flatten(0, -2)
        if torch.is_grad_enabled():  # a second derivative differentiates the products themselves
            scaled = None if scaled is None else (weights * grads).to(ctx.dtype)
            dots = None if dots is None else (rows.float() * grads.float()).sum(-1)
        else:
            _scale_and_dot(rows, grads, weights, scaled, dots)
        grad_topk_weights = None
        if dots is not None:
            carriers = dots.new_zeros(len(dots), 1)
            grad_topk_weights = _Combine.apply(ctx.exchange, ctx.handle, carriers, dots, None)[1]
        return None, None, None if scaled is None else scaled.view(ctx.shape), grad_topk_weights, None


def _scale_and_dot(rows, grads, weights, scaled, dots):
    """scaled [N, H] = weights [N, 1] * grads, and dots [N] of rows and grads, in float32; None is left out.

    Block by block, small enough for a core's cache: float32 copies of all rows took five times as long as the exchange.
    On a device the blocks bound the memory of the copies.
    """
    block = max(1, 2 ** (26 if grads.is_cuda else 16) // max(1, grads.shape[-1]))
    for begin in range(0, len(grads), block):
        part = slice(begin, begin + block)
        each = grads[part].float()
        if dots is not None:
            torch.sum(rows[part].float() * each, -1, out=dots[part])
        if scaled is not None:
            scaled[part] = each * weights[part]


def _dispatch_again(ctx, tokens, topk_weights):
    """Rows and weights of a cached dispatch; views of the window unless a second derivative may keep them."""
    _check_backward(ctx.exchange)
    tokens = tokens.to(getattr(torch, ctx.exchange.config["dtype"]))
    return _Dispatch.apply(ctx.exchange, tokens, topk_weights, torch.is_grad_enabled(), {"handle": ctx.handle})[:2]


def _check_backward(exchange):
    """torch has one thread for the backward passes of a device. Where ranks are threads that share the device, it would
    wait in the call of one rank for the calls of the others, which come after."""
    if getattr(exchange, "shares_device", False) and torch._C._is_multithreading_enabled():
        raise InvalidArgument("backward: ranks that are threads share this device, so each must make its backward pass "
                              "itself, under torch.autograd.set_multithreading_enabled(False)")


def _linear(exchange):
    """The exchange, unless it does more than move rows and add them. All ranks agree: they have the same config."""
    needed = {"wire": "none", "combine_wire": "none", "copy_experts": 0, "constant_experts": 0}
    for name, value in needed.items():
        if exchange.config[name] != value:
            raise InvalidArgument(f"ferry.torch needs an exchange with {name}={value!r}, not {exchange.config[name]!r}")
    return exchange


def _check_width(exchange, rows, topk_weights):
    if not (torch.is_grad_enabled() and torch.is_tensor(rows)):
        return
    hidden = exchange.config["hidden"]
    need_gradient = rows.requires_grad or (torch.is_tensor(topk_weights) and topk_weights.requires_grad)
    if need_gradient and rows.shape[-1:] != (hidden,):
        message = f"combine: rows {list(rows.shape)} need gradients, which travel as tokens of hidden {hidden}"
        take(exchange.refuse_combine, message)
        raise InvalidArgument(message)


def _zero_gaps(exchange, handle, arrays):
    """What lies behind an expert's rows is undefined; NaN there would poison a parameter though its gradient is 0."""
    if arrays[0].is_cuda:
        return _zero_gaps_on_device(exchange.config, handle, arrays)
    if exchange.config["layout"] == "rank_major" or exchange.config["zero_gaps"]:
        return
    offsets = handle.expert_offsets
    for begin, end in zip((offsets[:-1] + handle.tokens_per_expert).tolist(), offsets[1:].tolist()):
        for array in arrays:
            if array is not None and begin < end:
                array.view(handle.num_rows, -1)[begin:end] = 0


def _zero_gaps_on_device(config, handle, arrays):
    """The same without knowing on the host where they are; and what lies behind the last row, where counts were not
    waited for."""
    num_rows = arrays[0].shape[:-1].numel()
    no_gaps = config["zero_gaps"] or config["layout"] == "rank_major"
    no_gaps = no_gaps or (config["layout"] == "expert_major" and config["expert_alignment"] == 1)
    if num_rows == 0 or (no_gaps and handle.num_rows == num_rows):
        return
    gaps = _gaps(handle, num_rows).unsqueeze(1)
    for array in arrays:
        if array is not None:
            array.view(num_rows, -1).masked_fill_(gaps, 0)


def _gaps(handle, num_rows):
    """bool [num_rows]: rows that hold no token."""
    offsets, counts, of_ranks = handle.expert_offsets, handle.tokens_per_expert, handle.running_rows_per_rank
    row = torch.arange(num_rows, device=counts.device)
    if len(of_ranks) > 0:  # rank_major
        return row >= of_ranks[-1]
    if len(counts) == 0:
        return row >= 0
    expert = torch.searchsorted(offsets[1:], row, right=True).clamp_(max=len(counts) - 1)
    return row >= (offsets[:-1] + counts)[expert]


def _dense(tensor):
    """Dense (a gradient is often one number, expanded). The exchange refuses what is no tensor, on all ranks."""
    return tensor.contiguous() if torch.is_tensor(tensor) else tensor
