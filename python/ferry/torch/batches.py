"""Two batches through a layer with gradients: rows of one are sent while the experts compute the other, forward and
backward.

The halves of dispatch and combine are nodes of autograd, and the backward of each is the opposite half of the
transposed operation. Read backwards, the schedule is the same, with A and B exchanged:

    A: dispatch_send, dispatch_recv   B: dispatch_send   A: experts, combine_send   B: dispatch_recv, experts
    A: combine_recv   B: combine_send, combine_recv

Among the nodes that are ready autograd runs the one that was made last, in one thread. So backward makes these calls
too, in the same order on all ranks, if the graphs of all ranks hold the same layers. A node passes a tensor without
elements to the next node of its batch; all other data is in the _Batch.

T tokens of a batch, H hidden, K top-k, N rows received. Calls ferry.Exchange."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.autograd.function import once_differentiable

import ferry
from ferry.torch.calls import checked_linear, uncompiled
from ferry.torch.experts_backward import ExpertsBackward
from ferry.torch.refusing import Refusing
from ferry.torch.rows import dense, scale_and_dot
from ferry.torch.turns import paired

_local = threading.local()


@uncompiled
def in_two(exchange, tokens, topk_ids, topk_weights, experts, routing):
    """dispatch -> experts -> combine of both halves of the tokens: returns [T, H] and the handles. Collective.
    `routing`: active_ranks and replica_table, as of Exchange.dispatch.

    The ranks agree on a dispatch in its send half, and on a combine in its receive half. The receive half of A comes
    before the send half of B, so that no rank waits in a call that other ranks will not make."""
    half = (len(tokens) + 1) // 2 if torch.is_tensor(tokens) else 0
    (tokens_a, ids_a, weights_a), (tokens_b, ids_b, weights_b) = (
        [_part(each, part) for each in (tokens, topk_ids, topk_weights)] for part in (slice(half), slice(half, None)))
    a, b = _Batch(checked_linear(exchange), routing), _Batch(exchange, routing)

    def refusing(half, *unfinished):
        """Returns a function that refuses a combine and drops the `unfinished` batches. Before the refusal it calls
        `half`, the half of the other batch that all ranks call first."""

        def refuse(why):
            half()
            exchange.refuse_combine(why, routing["active_ranks"])
            for batch in unfinished:
                batch.drop()

        return refuse

    try:
        rows_a = _DispatchRecv.apply(a, _DispatchSend.apply(a, tokens_a, ids_a, weights_a))
        coming = _DispatchSend.apply(b, tokens_b, ids_b, weights_b)
        with Refusing(refusing(b.sent)):
            outputs = a.compute(experts, rows_a, refusing(b.receive))
        b.sent()
        leaving = _CombineSend.apply(a, outputs, rows_a, weights_a)
        rows_b = _DispatchRecv.apply(b, coming)
        with Refusing(refusing(a.receive)):
            outputs = b.compute(experts, rows_b, refusing(a.sent, a))
        out_a = _CombineRecv.apply(a, leaving, weights_a)
        out_b = _CombineRecv.apply(b, _CombineSend.apply(b, outputs, rows_b, weights_b), weights_b)
    except BaseException:
        a.drop()
        b.drop()
        raise
    return torch.cat([out_a, out_b]), [a.handle, b.handle]


def _part(tensor, part):
    """Returns a slice of the tensor. Any other object is returned unchanged, so that the exchange refuses it on all
    ranks."""
    return tensor[part] if torch.is_tensor(tensor) else tensor


class _Batch:
    """The state that the nodes of a batch share. One other thread makes all calls of the exchange, in order, so that
    the experts need not wait while a dispatch_send sends its rows."""

    def __init__(self, exchange, routing):
        self.exchange, self.routing, self.handle, self._sending = exchange, routing, None, None
        self.weights_need_gradient, self.dots, self.grad_weights = False, None, None  # [N] and [T, K]

    def send(self, half, *arguments, **more):
        if paired():  # the graph was made outside of the pair; all ranks raise
            raise ferry.InvalidArgument("moe: the gradients of two batches do not run in a pair")
        self._sending = _worker().submit(half, *arguments, **more)

    def sent(self):
        """Waits for the send half, and raises what it does."""
        return self._wait(self._sending)

    def receive(self):
        operation, self._sending = self.sent(), None
        return self._wait(_worker().submit(operation.recv))

    def _wait(self, call):
        try:
            return call.result()
        except KeyboardInterrupt:  # ends the waits of the other ranks too, as Ctrl-C in a wait of ferry does
            self.exchange.group.interrupt()
            raise

    def drop(self):
        """Receives the rows of a half, which the layer will not use: all ranks have sent them."""
        try:
            if self._sending is not None:
                self.receive()
        except Exception:  # the error that made this rank drop the batch is raised
            self._sending = None

    def compute(self, experts, rows, refuse_backward):
        counts = self.handle.tokens_per_expert.tolist()
        outputs = ExpertsBackward(refuse_backward).between(rows, lambda rows: experts(rows, counts))
        if outputs.shape != rows.shape:
            raise ferry.InvalidArgument(f"moe: experts gave {list(outputs.shape)} for rows {list(rows.shape)}")
        return outputs


def _worker():
    """Returns the thread that makes the calls of the calling thread; each rank that is a thread has its own. It records
    no gradients, as in a node of autograd."""
    if not hasattr(_local, "worker"):
        _local.worker = ThreadPoolExecutor(1, "ferry.torch.batches", torch.set_grad_enabled, (False,))
    return _local.worker


class _DispatchSend(torch.autograd.Function):
    """Starts to send the tokens [T, H] of a batch. topk_weights [T, K] are not sent; they are an argument so that they
    get a gradient."""

    @staticmethod
    def forward(ctx, batch, tokens, topk_ids, topk_weights):
        ctx.batch, batch.weights_need_gradient = batch, ctx.needs_input_grad[3]
        batch.send(batch.exchange.dispatch_send, dense(tokens), dense(topk_ids), **batch.routing)
        return torch.empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        grads, grad_weights = ctx.batch.receive(), ctx.batch.grad_weights
        return None, grads if ctx.needs_input_grad[1] else None, None, grad_weights


class _DispatchRecv(torch.autograd.Function):
    """Receives the rows [N, H] of a batch."""

    @staticmethod
    def forward(ctx, batch, _):
        received = batch.receive()
        ctx.batch, batch.handle = batch, received.handle
        return received.rows.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grads):
        batch, more = ctx.batch, {}
        batch.grad_weights = None
        if batch.weights_need_gradient:
            batch.grad_weights = torch.empty(batch.handle.num_tokens, batch.exchange.config["top_k"])
            more = dict(row_weights=batch.dots, out_topk_weights=batch.grad_weights)
        batch.send(batch.exchange.combine_send, dense(grads), batch.handle, **more)
        return None, torch.empty(0)


class _CombineSend(torch.autograd.Function):
    """Starts to send the outputs [N, H] of a batch, for sums with topk_weights [T, K]. `rows` are an argument so that
    the gradients of weights are sent with the gradients of rows, even if the outputs do not depend on the rows."""

    @staticmethod
    def forward(ctx, batch, outputs, rows, topk_weights):
        ctx.batch, ctx.dtype = batch, outputs.dtype
        ctx.save_for_backward(outputs if batch.weights_need_gradient else None)
        batch.send(batch.exchange.combine_send, dense(outputs), batch.handle, dense(topk_weights))
        return torch.empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        (outputs,), batch = ctx.saved_tensors, ctx.batch
        received = batch.receive()
        grads, weights = received.rows, received.weights
        weights = torch.ones(len(grads), 1) if weights is None else weights.view(-1, 1)
        scaled = torch.empty(grads.shape, dtype=ctx.dtype) if ctx.needs_input_grad[1] else None
        batch.dots = torch.empty(len(grads)) if outputs is not None else None
        scale_and_dot(outputs, grads, weights, scaled, batch.dots)
        return None, scaled, None, None


class _CombineRecv(torch.autograd.Function):
    """Receives the sums [T, H] of a batch."""

    @staticmethod
    def forward(ctx, batch, _, topk_weights):
        ctx.batch, out = batch, batch.receive()
        ctx.save_for_backward(topk_weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grads):
        batch, (topk_weights,) = ctx.batch, ctx.saved_tensors
        grads = grads.to(getattr(torch, batch.exchange.config["dtype"]))
        batch.send(batch.exchange.dispatch_send, dense(grads), topk_weights=dense(topk_weights), handle=batch.handle)
        return None, torch.empty(0), None
