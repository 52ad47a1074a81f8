"""What experts raise in backward() is told to the other ranks, as what they raise in a forward pass is.

autograd tells nobody that a backward pass failed, but it drops the callbacks that were queued for the end of that pass.
So the experts stand between two nodes. In backward the one behind their outputs comes first and queues a callback; the
one before their rows comes last and disarms it. A callback that is dropped while it is armed refuses the call that the
other ranks make next. Called by ferry.moe and ferry.batches.
"""

import weakref

import torch

from ferry.turns import take


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
