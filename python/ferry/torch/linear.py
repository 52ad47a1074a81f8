"""Dispatch and combine that autograd can differentiate.

Both only move and add rows, so each is linear, and each is the transpose of the other. The gradient of a dispatch is a
plain combine with its handle; the gradient of a plain combine is a cached dispatch. A combine that weights the rows
dispatches its gradient unscaled. The rank that has the rows computes weight * gradient, and the float32 dot product of
row and gradient, which is sent to the source of the token as the gradient of the weight.

So backward() is collective: all ranks call it, in the same order, on graphs that hold the same calls. A tensor that
requires a gradient on one rank requires it on all ranks, including ranks that sent or received no row.

The exchange is a ferry.Exchange, or for tensors of a CUDA device a ferry.cuda.Exchange.

T tokens of this rank, H hidden, K top-k, N rows received. Calls the exchange.
"""

from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import torch

from ferry import Exchange, Handle, InvalidArgument
from ferry.torch.calls import checked_linear, uncompiled
from ferry.torch.rows import dense, scale_and_dot, zero_gaps
from ferry.torch.turns import take

if TYPE_CHECKING:
    import ferry.cuda


class Dispatched(NamedTuple):
    """The results of a dispatch. Gradients flow through rows and weights."""

    rows: torch.Tensor  # [N, H], padded [L, C, H]; zeros where no token was placed
    weights: Optional[torch.Tensor]  # float32 [N], rank_major [N, K]; None without topk_weights
    handle: "Union[Handle, ferry.cuda.Handle]"
    sources: torch.Tensor  # int32 [N, 3]: source rank (its place in handle.active_ranks, if that is not None), token, k
    topk_ids: Optional[torch.Tensor]  # rank_major: int32 [N, K], local expert or -1; else None


@uncompiled
def dispatch(exchange: "Union[Exchange, ferry.cuda.Exchange]", tokens: torch.Tensor,
             topk_ids: Optional[torch.Tensor] = None, topk_weights: Optional[torch.Tensor] = None, *, copy: bool = True,
             **routing: Any) -> Dispatched:
    """Sends tokens [T, H] to the ranks of their experts and returns Dispatched.

    Differentiable in tokens and in topk_weights, float32 [T, K], which arrive as `weights`. They are for experts that
    weight their rows themselves, as experts of rank_major must, and are given by all ranks or by none. `routing`: more
    arguments of Exchange.dispatch, such as handle.

    copy: the results are copied into memory of torch, where autograd may keep them. False: they are views that pin a
    buffer of the window until the graph is deleted, see Received.

    Raises InvalidArgument when the exchange does more than move rows (a wire, copy or constant experts), and what
    Exchange.dispatch raises.
    """
    routing["topk_ids"] = topk_ids
    return Dispatched(*_Dispatch.apply(checked_linear(exchange), tokens, topk_weights, copy, routing))


@uncompiled
def combine(exchange: "Union[Exchange, ferry.cuda.Exchange]", rows: torch.Tensor,
            handle: "Union[Handle, ferry.cuda.Handle]", topk_weights: Optional[torch.Tensor] = None, *,
            out_dtype: Optional[torch.dtype] = None, **unknown) -> torch.Tensor:
    """Sends the rows [N, H] of the experts back to the sources of their tokens, and returns their sums [T, H] of
    out_dtype, by default the dtype of the rows.

    out[t] is the sum over k of topk_weights[t, k] * row of (t, k), or without topk_weights the plain sum.
    Rows that lie in the window are read in place: Exchange.may_write says when they may be written to again.

    Differentiable in rows and in topk_weights, float32 [T, K]. Gradients travel in the exchange's dtype. Weights that
    need a gradient make autograd keep the rows: rows that lie in the window pin their buffer until backward.

    Raises InvalidArgument as dispatch does. Raises it too for rows that are not as wide as a token if the rows or the
    weights need a gradient; then the other ranks raise PeerRejected. Raises what Exchange.combine raises.
    """
    if unknown:  # refused on all ranks, as Exchange.combine does
        message = f"combine() has no argument '{next(iter(unknown))}'"
        _refuse_combine(exchange, handle, message)
        raise TypeError(message)
    _check_width(checked_linear(exchange), rows, handle, topk_weights)
    if topk_weights is None:
        return _Combine.apply(exchange, handle, rows, None, out_dtype)[0]
    return _WeightedCombine.apply(exchange, handle, rows, topk_weights, out_dtype)


class _Dispatch(torch.autograd.Function):
    """Turns tokens [T, H] and topk_weights [T, K] into rows [N, H] and weights [N]. It is the transpose of _Combine."""

    @staticmethod
    def forward(ctx, exchange, tokens, topk_weights, copy, routing):
        received = take(exchange.dispatch, dense(tokens), topk_weights=dense(topk_weights), **routing)
        ctx.exchange, ctx.handle, ctx.elsewhere = exchange, received.handle, None
        weights = None if topk_weights is None else received.weights
        if weights is not None and ctx.needs_input_grad[2]:
            if received.topk_ids is not None:
                ctx.elsewhere = received.topk_ids < 0
            if weights.is_cuda:
                received.keep_sources()  # backward needs them, to send the gradients of weights to the sources
        results = [received.rows, weights, received.sources, received.topk_ids]
        zero_gaps(exchange, received.handle, results[:2])
        if copy:
            results = [result if result is None else result.clone() for result in results]
        return (*results[:2], received.handle, *results[2:])

    @staticmethod
    def backward(ctx, grad_rows, grad_weights, *_):
        if ctx.elsewhere is not None:  # zeros for experts of other ranks, as combine adds the values of all ranks
            grad_weights = grad_weights.masked_fill(ctx.elsewhere, 0)
        _check_backward(ctx.exchange)
        grads = _Combine.apply(ctx.exchange, ctx.handle, grad_rows, grad_weights, None)
        wanted = [grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad[1:])]
        return (None, *wanted, None, None)


class _Combine(torch.autograd.Function):
    """Turns rows [N, H] and row_weights [N] into the sums of the rows [T, H] and the row_weights at their sources
    [T, K]."""

    @staticmethod
    def forward(ctx, exchange, handle, rows, row_weights, out_dtype):
        returned = None if row_weights is None else row_weights.new_empty(handle.num_tokens, exchange.config["top_k"])
        weights = dict(row_weights=dense(row_weights), out_topk_weights=returned)
        out = take(exchange.combine, dense(rows), handle, out_dtype=out_dtype, **weights)
        ctx.exchange, ctx.handle, ctx.shape = exchange, handle, rows.shape
        return out, returned

    @staticmethod
    def backward(ctx, grad_out, grad_returned):
        needs_rows = ctx.needs_input_grad[2]
        if not needs_rows:  # only row_weights need a gradient; the rows may have any width
            grad_out = grad_out.new_zeros(len(grad_out), ctx.exchange.config["hidden"])
        grad_rows, grad_row_weights = _dispatch_again(ctx, grad_out, grad_returned)
        return None, None, grad_rows.view(ctx.shape) if needs_rows else None, grad_row_weights, None


class _WeightedCombine(torch.autograd.Function):
    """Turns rows [N, H] and topk_weights [T, K] into weighted sums [T, H]."""

    @staticmethod
    def forward(ctx, exchange, handle, rows, topk_weights, out_dtype):
        out = take(exchange.combine, dense(rows), handle, dense(topk_weights), out_dtype=out_dtype)
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
            scale_and_dot(rows, grads, weights, scaled, dots)
        grad_topk_weights = None
        if dots is not None:
            carriers = dots.new_zeros(len(dots), 1)
            grad_topk_weights = _Combine.apply(ctx.exchange, ctx.handle, carriers, dots, None)[1]
        return None, None, None if scaled is None else scaled.view(ctx.shape), grad_topk_weights, None


def _dispatch_again(ctx, tokens, topk_weights):
    """Makes a cached dispatch and returns its rows and weights. They are views of the window, or copies if autograd may
    keep them for a second derivative."""
    _check_backward(ctx.exchange)
    tokens = tokens.to(getattr(torch, ctx.exchange.config["dtype"]))
    return _Dispatch.apply(ctx.exchange, tokens, topk_weights, torch.is_grad_enabled(), {"handle": ctx.handle})[:2]


def _check_backward(exchange):
    """Raises InvalidArgument if ranks are threads that share a device and do not make their backward passes themselves.
    torch has one thread for the backward passes of a device: it would wait in the call of one rank for the calls of the
    other ranks, which the same thread makes later."""
    if getattr(exchange, "shares_device", False) and torch._C._is_multithreading_enabled():
        raise InvalidArgument("backward: ranks that are threads share this device, so each must make its backward pass "
                              "itself, under torch.autograd.set_multithreading_enabled(False)")


def _refuse_combine(exchange, handle, message):
    ranks = getattr(handle, "active_ranks", None)  # on a GPU all ranks take part
    take(exchange.refuse_combine, message, *([] if ranks is None else [ranks]))


def _check_width(exchange, rows, handle, topk_weights):
    if not (torch.is_grad_enabled() and torch.is_tensor(rows)):
        return
    hidden = exchange.config["hidden"]
    need_gradient = rows.requires_grad or (torch.is_tensor(topk_weights) and topk_weights.requires_grad)
    if need_gradient and rows.shape[-1:] != (hidden,):
        message = f"combine: rows {list(rows.shape)} need gradients, which travel as tokens of hidden {hidden}"
        _refuse_combine(exchange, handle, message)
        raise InvalidArgument(message)
