"""What experts raise in backward() is told to the other ranks, as what they raise in a forward pass is.

autograd tells nobody that a backward pass failed, but it drops the callbacks that were queued for the end of that pass.
So the experts stand between two nodes. In backward the one behind their outputs comes first and queues a callback; the
one before their rows comes last and disarms it. A callback that is dropped while it is armed refuses the call that the
other ranks make next.

And every weight gets a gradient in each backward pass, zeros where no row came to it: an optimizer makes the same step
on all copies of a weight, and what averages gradients over ranks waits for one of each."""

import weakref

import torch

from ferry.torch.turns import take


class ExpertsBackward:
    """The backward pass of the experts of one call. `refuse(why)` tells the other ranks, which wait for the gradients
    of this rank's rows."""

    def __init__(self, refuse):
        self.refuse, self._callback = refuse, lambda: None

    def between(self, rows, experts):
        """experts(rows), watched where the rows need gradients, else nobody waits for them. The outputs need some on
        every rank: on one without rows they may come from no weights, and the combine's backward is collective."""
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
    """autograd alone holds it: it calls it at the end of the backward pass that made it, or drops it if that fails."""

    def __init__(self, refuse):
        self._refuse = refuse
        torch.autograd.Variable._execution_engine.queue_callback(self.__call__)

    def __call__(self):
        self._refuse = None

    def __del__(self):
        if self._refuse is None:
            return
        try:
            take(self._refuse, "moe: experts raised in backward(); that rank says what")
        except Exception:  # the error of the pass itself is on its way
            pass


class _Node(torch.autograd.Function):
    """The tensor as it is; its gradient, too, after a call of `passed`."""

    @staticmethod
    def forward(ctx, passed, tensor):
        ctx.passed = passed
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grads):
        ctx.passed()
        return None, grads


def reaching(experts, weights):
    """experts(rows, counts), whose outputs depend on all of the weights, by zeros on those that they do not reach."""

    def call(rows, counts):
        outputs = experts(rows, counts)
        if not torch.is_tensor(outputs):
            return outputs
        missing = _unreached(outputs, rows, weights)
        return _Zeros.apply(outputs, *missing) if missing else outputs

    return call


def _unreached(outputs, rows, weights):
    """The weights that need gradients and of which the outputs do not know."""
    waiting, seen = [outputs.grad_fn], {None, rows.grad_fn}  # `seen` keeps the nodes, whose identity is asked for
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
    """The outputs as they are; zeros as gradients of the weights."""

    @staticmethod
    def forward(ctx, outputs, *weights):
        ctx.zeros = [dict(size=weight.shape, dtype=weight.dtype, device=weight.device) for weight in weights]
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx, grads):
        return grads, *(torch.zeros(**each) for each in ctx.zeros)
