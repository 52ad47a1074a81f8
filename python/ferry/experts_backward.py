"""What experts raise in backward() is told to the other ranks, as what they raise in a forward pass is.

autograd tells nobody that a pass failed, but it drops the callbacks that wait for the end of that pass. So a node
behind the experts' outputs queues one, which a node before their rows disarms: one that is dropped between the two
refuses the call that the other ranks make next. Called by ferry.moe and ferry.batches.
"""

import weakref

import torch


class ExpertsBackward:
    """Those of one call. `refuse(why)` tells the other ranks, which come to the gradients of these rows."""

    def __init__(self, refuse):
        self.refuse, self._callback = refuse, lambda: None

    def between(self, rows, experts):
        """experts(rows), which autograd has between the two nodes. Without gradients of rows nobody waits for them."""
        if not rows.requires_grad:
            return experts(rows)
        outputs = experts(_Rows.apply(self, rows))
        return _Outputs.apply(self, outputs) if torch.is_tensor(outputs) else outputs

    def begin(self):
        self._callback = weakref.ref(_Callback(self.refuse))

    def end(self):
        callback = self._callback()
        if callback is not None:
            callback()


class _Callback:
    """At the end of the backward pass in which it is made; autograd alone holds it until then."""

    def __init__(self, refuse):
        self._refuse = refuse
        torch.autograd.Variable._execution_engine.queue_callback(self.__call__)

    def __call__(self):
        self._refuse = None

    def __del__(self):
        if self._refuse is None:
            return
        try:
            self._refuse("moe: experts raised in backward(); that rank says what")
        except Exception:  # the error of the pass itself is on its way
            pass


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, watch, outputs):
        ctx.watch = watch
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx, grads):
        ctx.watch.begin()
        return None, grads


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, watch, rows):
        ctx.watch = watch
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx, grads):
        ctx.watch.end()
        return None, grads
