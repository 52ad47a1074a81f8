"""Turns the collectives of torch.distributed into calls of ferry.Collectives. It reads the tensors of each call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
from torch._C import _distributed_c10d as c10d

from ferry.errors import InvalidArgument, as_refusal
from ferry.torch_backend.tensors import Output, OutputList, one, read, read_list, row_counts, summed, width

if TYPE_CHECKING:
    from ferry import _core

_OPS = {c10d.ReduceOp.SUM: "sum", c10d.ReduceOp.AVG: "avg", c10d.ReduceOp.PRODUCT: "product",
        c10d.ReduceOp.MIN: "min", c10d.ReduceOp.MAX: "max", c10d.ReduceOp.BAND: "band", c10d.ReduceOp.BOR: "bor",
        c10d.ReduceOp.BXOR: "bxor"}


class Call(NamedTuple):
    """A collective whose arguments have been read. `run` takes a deadline in seconds, moves the data and fills
    `outputs`."""

    opts: Any
    tensors: list[torch.Tensor]
    run: Callable[[float], None]
    outputs: list[torch.Tensor]


def collective(name: str) -> Callable:
    """A decorator for a method that reads the arguments of a call and returns a Call. The decorated method issues the
    call. A call that the method refuses is refused on all ranks."""

    def decorate(read_call: Callable[..., Call]) -> Callable:
        @functools.wraps(read_call)
        def issue(self, *args, **kwargs):
            try:
                call = read_call(self, *args, **kwargs)
            except Exception as error:
                return self._refuse(name, as_refusal(error))
            return self._issue(name, call)

        return issue

    return decorate


class CollectiveCalls:
    """The methods that torch.distributed calls, with their names in torch 2.14 and their other names in torch 2.13."""

    _calls: _core.Collectives
    _num_ranks: int

    # Reductions.

    @collective("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = c10d.AllreduceOptions()) -> Call:
        tensor, = one(tensors)
        out = Output(tensor, "tensor", filled=True)
        reduction = _reduction(opts)
        numbers = reduction.numbers(out.memory)

        def run(deadline):
            self._calls.all_reduce(numbers, reduction.summands(numbers), reduction.op, deadline=deadline)
            out.finish()

        return Call(opts, [tensor], run, [tensor])

    @collective("all_reduce")
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = c10d.AllreduceCoalescedOptions()
                            ) -> Call:
        outs = [Output(tensor, f"tensors[{i}]", filled=True) for i, tensor in enumerate(tensors)]
        reduction = _reduction(opts)
        numbers = [reduction.numbers(out.memory) for out in outs]

        def run(deadline):
            for out, each in zip(outs, numbers):
                self._calls.all_reduce(each, reduction.summands(each), reduction.op, deadline=deadline)
                out.finish()

        return Call(opts, tensors, run, tensors)

    @collective("reduce")
    def reduce(self, tensors: Any, opts: Any = c10d.ReduceOptions()) -> Call:
        tensor, = one(tensors)
        root = opts.rootRank
        out = Output(tensor, "tensor", filled=True, written=root == self.rank())
        reduction = _reduction(opts)
        numbers = reduction.numbers(out.memory)

        def run(deadline):
            self._calls.reduce(numbers, reduction.summands(numbers), root, reduction.op, deadline=deadline)
            if root == self.rank():
                out.finish()

        return Call(opts, [tensor], run, [tensor])

    @collective("reduce_scatter")
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = c10d.ReduceScatterOptions()) -> Call:
        output, = one(outputs)
        rows, counts = read_list(_inner(inputs), "inputs")
        self._check_number(counts, "inputs")
        run = self._reduce_scatter(Output(output, "output"), rows, counts, _reduction(opts))
        return Call(opts, [output], run, [output])

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor,
                              opts: Any = c10d.ReduceScatterOptions()) -> FerryWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @collective("reduce_scatter_single")
    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                        opts: Any = c10d.ReduceScatterOptions()) -> Call:
        runs = [self._reduce_scatter(Output(output, "output"), read(tensor, "input"),
                                     [output.numel()] * self._num_ranks, _reduction(opts))
                for output, tensor in zip(outputs, inputs, strict=True)]

        def run(deadline):
            for each in runs:
                each(deadline)

        return Call(opts, inputs, run, outputs)

    def _reduce_scatter(self, out, rows, counts, reduction):
        numbers, rows_of_numbers = reduction.numbers(out.memory), reduction.numbers(rows)
        widened = [width(rows) * count for count in counts]

        def run(deadline):
            self._calls.reduce_scatter_v(numbers, reduction.summands(rows_of_numbers), widened, reduction.op,
                                         deadline=deadline)
            out.finish()

        return run

    # Calls that move elements.

    @collective("broadcast")
    def broadcast(self, tensors: Any, opts: Any = c10d.BroadcastOptions()) -> Call:
        tensor, = one(tensors)
        root = opts.rootRank
        out = Output(tensor, "tensor", filled=root == self.rank(), written=root != self.rank())

        def run(deadline):
            self._calls.broadcast(out.memory, root, deadline=deadline)
            if root != self.rank():
                out.finish()

        return Call(opts, [tensor], run, [tensor])

    @collective("all_gather")
    def allgather(self, outputs: Any, inputs: Any, opts: Any = c10d.AllgatherOptions()) -> Call:
        tensor, = one(inputs)
        rows, out = read(tensor, "input"), OutputList(_inner(outputs), "outputs")
        self._check_number(out.counts, "outputs")

        def run(deadline):
            self._all_gather(out, rows, out.counts, deadline)

        return Call(opts, [tensor], run, out.tensors)

    @collective("all_gather")
    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor],
                            opts: Any = c10d.AllgatherOptions()) -> Call:
        """outputs[r] has the tensors that rank r gives."""
        self._check_number(outputs, "outputs")
        calls = [(OutputList(parts, "outputs"), read(tensor, "input"))
                 for tensor, *parts in zip(inputs, *outputs, strict=True)]

        def run(deadline):
            for out, rows in calls:
                self._all_gather(out, rows, out.counts, deadline)

        return Call(opts, inputs, run, [tensor for out, _ in calls for tensor in out.tensors])

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = c10d.AllgatherOptions()
                          ) -> FerryWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    @collective("all_gather_single")
    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor],
                                    opts: Any = c10d.AllgatherOptions()) -> Call:
        calls = [(Output(output, "output"), read(tensor, "input"))
                 for output, tensor in zip(outputs, inputs, strict=True)]

        def run(deadline):
            for out, rows in calls:
                self._all_gather(out, rows, [rows.numel()] * self._num_ranks, deadline)

        return Call(opts, inputs, run, outputs)

    def _all_gather(self, out, rows, counts, deadline):
        self._calls.all_gather_v(out.memory, rows, counts, deadline=deadline)
        out.finish()

    @collective("gather")
    def gather(self, outputs: Any, inputs: Any, opts: Any = c10d.GatherOptions()) -> Call:
        tensor, = one(inputs)
        rows, root = read(tensor, "input"), opts.rootRank
        out = OutputList(_inner(outputs), "outputs") if root == self.rank() else None
        counts = out.counts if out else [tensor.numel()] * self._num_ranks
        self._check_number(counts, "outputs")

        def run(deadline):
            self._calls.gather_v(out.memory if out else None, rows, counts, root, deadline=deadline)
            if out:
                out.finish()

        return Call(opts, [tensor], run, out.tensors if out else [])

    @collective("scatter")
    def scatter(self, outputs: Any, inputs: Any, opts: Any = c10d.ScatterOptions()) -> Call:
        output, = one(outputs)
        out, root = Output(output, "output"), opts.rootRank
        rows, counts = None, [output.numel()] * self._num_ranks
        if root == self.rank():
            rows, counts = read_list(_inner(inputs), "inputs")
            self._check_number(counts, "inputs")

        def run(deadline):
            self._calls.scatter_v(out.memory, rows, counts, root, deadline=deadline)
            out.finish()

        return Call(opts, [output], run, [output])

    @collective("all_to_all_single")
    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int],
                          input_splits: list[int], opts: Any = c10d.AllToAllOptions()) -> Call:
        rows, out = read(input, "input"), Output(output, "output")
        in_counts = row_counts(input, input_splits, self._num_ranks, "input")
        out_counts = row_counts(output, output_splits, self._num_ranks, "output")

        def run(deadline):
            self._all_to_all(out, rows, out_counts, in_counts, deadline)

        return Call(opts, [input], run, [output])

    @collective("all_to_all")
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = c10d.AllToAllOptions()
                 ) -> Call:
        out = OutputList(outputs, "outputs")
        rows, counts = read_list(inputs, "inputs")
        self._check_number(counts, "inputs")
        self._check_number(out.counts, "outputs")

        def run(deadline):
            self._all_to_all(out, rows, out.counts, counts, deadline)

        return Call(opts, inputs, run, outputs)

    def _all_to_all(self, out, rows, out_counts, in_counts, deadline):
        self._calls.all_to_all_v(out.memory, rows, out_counts, in_counts, deadline=deadline)
        out.finish()

    @collective("barrier")
    def barrier(self, opts: Any = c10d.BarrierOptions()) -> Call:
        return Call(opts, [], lambda deadline: self._calls.barrier(deadline=deadline), [])

    # Names of torch 2.13 and before.

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _check_number(self, of_ranks: list, name: str) -> None:
        if len(of_ranks) != self._num_ranks:
            raise InvalidArgument(f"{name} has length {len(of_ranks)}: one for each of {self._num_ranks} ranks is "
                                  "needed")


def _inner(lists: Any) -> list[torch.Tensor]:
    """Returns the list of tensors of a call. torch passes a list that contains this list."""
    return list(lists[0]) if len(lists) and not isinstance(lists[0], torch.Tensor) else list(lists)


class _Reduction(NamedTuple):
    """A reduction of torch: `op` of the numbers. In PREMUL_SUM they are first multiplied by `factor`."""

    op: str
    factor: float | None = None

    def numbers(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.factor is not None and not (tensor.is_floating_point() or tensor.is_complex()):
            raise InvalidArgument(f"PREMUL_SUM of {tensor.dtype}: floating-point or complex numbers are needed")
        return summed(tensor, self.op)

    def summands(self, numbers: torch.Tensor) -> torch.Tensor:
        """What is reduced. A product is rounded to the type of the numbers."""
        return numbers if self.factor is None else numbers * self.factor


def _reduction(opts: Any) -> _Reduction:
    op = opts if isinstance(opts, (c10d.ReduceOp, c10d.ReduceOp.RedOpType)) else opts.reduceOp
    for known, name in _OPS.items():
        if op == known:
            return _Reduction(name)
    if op == c10d.ReduceOp.PREMUL_SUM:
        return _Reduction("sum", float(op.__getstate__()[1]))
    raise InvalidArgument(f"{op}: the backend ferry has {', '.join(_OPS.values())} and PREMUL_SUM")
