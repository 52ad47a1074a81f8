"""When experts raise in backward(), sends a refusal to the other ranks, as a forward pass does.

autograd reports a failed backward pass to its caller only, but it drops the callbacks that were queued for the end of
that pass. So the experts are between two nodes. In backward the node behind their outputs comes first and queues a
callback; the node before their rows comes last and disarms it. A callback that is dropped while it is armed refuses the
call that the other ranks make next.

Every weight gets a gradient in each backward pass, zeros if its expert got no row. So an optimizer makes the same step
on all copies of a weight, and an average of gradients over ranks, which waits for every gradient, ends."""

import weakref

import torch

from ferry.torch.turns import take


class ExpertsBackward:
    """The backward pass of the experts of one call. `refuse(why)` sends the refusal to the other ranks, which wait for
    the gradients of this rank's rows."""

    def __init__(self, refuse):
        self.refuse, self._callback = refuse, lambda: None

    def between(self, rows, experts):
        """experts(rows), watched where the rows need gradients: other ranks wait for them. The outputs need a gradient
        on every rank, because the backward of the combine is collective, also on a rank without rows, whose outputs may
        depend on no weight."""
        outputs = experts(_Node.apply(self.end, rows) if rows.requires_grad else rows)
        if not torch.is_tensor(outputs):
            return outputs
        if not outputs.requires_grad:
            return outputs.detach().requires_grad_()
        return _Node.apply(self.begin, outputs) if rows.requires_grad else outputs

    def begin(self):
        self._callback = weakref.ref(_Callback(self.refuse))

    def end(self):
        callback = self._callback()
        if callback is not None:
            callback()


class _Callback:
    """Only autograd refers to it: autograd calls it at the end of the backward pass, or drops it if the pass fails."""

    def __init__(self, refuse):
        self._refuse = refuse
        torch.autograd.Variable._execution_engine.queue_callback(self.__call__)

    def __call__(self):
        self._refuse = None

    def __del__(self):
        if self._refuse is None:
            return
        try:
            take(self._refuse, "moe: experts raised in backward(); the error is on that rank")
        except Exception:  # autograd raises the error of the pass itself
            pass


class _Node(torch.autograd.Function):
    """Returns the tensor unchanged. In backward it calls `passed` and returns the gradient unchanged."""

    @staticmethod
    def forward(ctx, passed, tensor):
        ctx.passed = passed
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grads):
        ctx.passed()
        return None, grads


def reaching(experts, weights):
    """Wraps experts(rows, counts) so that the outputs depend on all of the weights. A weight on which they do not
    depend otherwise gets zeros as its gradient."""

    def call(rows, counts):
        outputs = experts(rows, counts)
        if not torch.is_tensor(outputs):
            return outputs
        missing = _unreached(outputs, rows, weights)
        return _Zeros.apply(outputs, *missing) if missing else outputs

    return call


def _unreached(outputs, rows, weights):
    """Returns the weights that need gradients and on which the outputs do not depend."""
    waiting, seen = [outputs.grad_fn], {None, rows.grad_fn}  # `seen` keeps the nodes, so that their ids stay valid
    leaves = {id(outputs)} if outputs.grad_fn is None else set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            leaves.add(id(getattr(node, "variable", None)))
            waiting += [one for one, _ in node.next_functions]
    return [weight for weight in weights
            if weight.requires_grad and (id(weight) not in leaves if weight.is_leaf else weight.grad_fn not in seen)]


class _Zeros(torch.autograd.Function):
    """Returns the outputs unchanged. In backward the gradients of the weights are zeros."""

    @staticmethod
    def forward(ctx, outputs, *weights):
        ctx.zeros = [dict(size=weight.shape, dtype=weight.dtype, device=weight.device) for weight in weights]
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx, grads):
        return grads, *(torch.zeros(**each) for each in ctx.zeros)
