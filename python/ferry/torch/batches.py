"""Two batches through a layer with gradients: one travels while the experts compute the other, forward and backward.

The halves of dispatch and combine are nodes of autograd, and the backward of each is the opposite half of the
transposed operation. Read from its end the schedule is itself, with A and B exchanged:

    A: dispatch_send, dispatch_recv   B: dispatch_send   A: experts, combine_send   B: dispatch_recv, experts
    A: combine_recv   B: combine_send, combine_recv

Of the nodes that are ready autograd runs the one that was made last, in one thread: so backward makes these calls too,
in the same order on all ranks, where their graphs hold the same layers. What a node hands to the next one of its batch
is a tensor without elements; the rest is in the batch.

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

    A dispatch is agreed on in its send half, a combine in its receive half: that of A comes before the send half of B,
    so that no rank is in a call that the others will not make."""
    half = (len(tokens) + 1) // 2 if torch.is_tensor(tokens) else 0
    (tokens_a, ids_a, weights_a), (tokens_b, ids_b, weights_b) = (
        [_part(each, part) for each in (tokens, topk_ids, topk_weights)] for part in (slice(half), slice(half, None)))
    a, b = _Batch(checked_linear(exchange), routing), _Batch(exchange, routing)

    def refusing(half, *left):
        """Refuses a combine after the `half` of the other batch that comes before it, and drops the batches `left`."""

        def refuse(why):
            half()
            exchange.refuse_combine(why, routing["active_ranks"])
            for batch in left:
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
    """The exchange refuses what is no tensor, on all ranks."""
    return tensor[part] if torch.is_tensor(tensor) else tensor


class _Batch:
    """What the nodes of a batch share. All calls of the exchange are made by one other thread, in order: a
    dispatch_send waits until its rows have left, and the experts need not."""

    def __init__(self, exchange, routing):
        self.exchange, self.routing, self.handle, self._sending = exchange, routing, None, None
        self.weights_need_gradient, self.dots, self.home = False, None, None  # dots [N] of backward, home [T, K]

    def send(self, half, *arguments, **more):
        if paired():  # a graph made outside of it; on all ranks alike
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
        except KeyboardInterrupt:  # as in ferry's own waits
            self.exchange.group.interrupt()
            raise

    def drop(self):
        """Receives what nobody will: all ranks have sent it."""
        try:
            if self._sending is not None:
                self.receive()
        except Exception:  # why it is dropped is raised
            self._sending = None

    def compute(self, experts, rows, refuse_backward):
        counts = self.handle.tokens_per_expert.tolist()
        outputs = ExpertsBackward(refuse_backward).between(rows, lambda rows: experts(rows, counts))
        if outputs.shape != rows.shape:
            raise ferry.InvalidArgument(f"moe: experts gave {list(outputs.shape)} for rows {list(rows.shape)}")
        return outputs


def _worker():
    """One per thread that calls: each rank of a process has its own. As in a node of autograd nothing is recorded."""
    if not hasattr(_local, "worker"):
        _local.worker = ThreadPoolExecutor(1, "ferry.batches", torch.set_grad_enabled, (False,))
    return _local.worker


class _DispatchSend(torch.autograd.Function):
    """tokens [T, H], topk_weights [T, K], which stay here -> the batch is on its way."""

    @staticmethod
    def forward(ctx, batch, tokens, topk_ids, topk_weights):
        ctx.batch, batch.weights_need_gradient = batch, ctx.needs_input_grad[3]
        batch.send(batch.exchange.dispatch_send, dense(tokens), dense(topk_ids), **batch.routing)
        return torch.empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        grads, grad_weights = ctx.batch.receive(), ctx.batch.home
        return None, grads if ctx.needs_input_grad[1] else None, None, grad_weights


class _DispatchRecv(torch.autograd.Function):
    """-> rows [N, H]."""

    @staticmethod
    def forward(ctx, batch, _):
        received = batch.receive()
        ctx.batch, batch.handle = batch, received.handle
        return received.rows.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grads):
        batch, more = ctx.batch, {}
        batch.home = None
        if batch.weights_need_gradient:
            batch.home = torch.empty(batch.handle.num_tokens, batch.exchange.config["top_k"])
            more = dict(row_weights=batch.dots, out_topk_weights=batch.home)
        batch.send(batch.exchange.combine_send, dense(grads), batch.handle, **more)
        return None, torch.empty(0)


class _CombineSend(torch.autograd.Function):
    """outputs [N, H], topk_weights [T, K] -> the outputs are on their way. With `rows`: gradients of weights go home
    with theirs, whether the outputs depend on them or not."""

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
    """-> the sums [T, H]."""

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
