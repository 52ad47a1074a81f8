"""BucketBuffer: DeepEP 2.5's all-gather, reduce-scatter and all-reduce of tensors that lie anywhere.

An all-gather is a dispatch of one row to every rank; a reduce-scatter one of R rows, row r to rank r, whose float32
values are added in the order of ranks, so that a result has the same bits on every run. R ranks.
"""

import contextlib

import torch

from ferry.deep_ep import groups
from ferry.deep_ep.events import overlap
from ferry.deep_ep.exchanges import Exchanges
from ferry.deep_ep.layout import describe
from ferry.deep_ep.redundant_experts import BufferAllocator
from ferry.errors import InvalidArgument

_FEWEST_SMS = 4
_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


class BucketBuffer:
    """Collectives of one group, or of several (a list), each call naming its own.

    allocation_plan_or_num_bytes: bytes of .storage, or a BufferAllocator whose tensors lie there. Tensors of calls may
    lie anywhere else as well. Ranks make the same calls with the same shapes, else ferry.Mismatch. Collective.
    """

    def __init__(self, group, allocation_plan_or_num_bytes, sl_idx=None, num_gpu_timeout_secs=100,
                 explicitly_destroy=False):
        plan = allocation_plan_or_num_bytes
        if isinstance(plan, BufferAllocator):
            self.num_bytes, self.storage = plan.num_bytes, plan.materialize()
        else:
            self.num_bytes, self.storage = plan, torch.zeros(plan, dtype=torch.uint8)
        self.groups = list(group) if isinstance(group, (list, tuple)) else [group]
        self.contexts = [None] * len(self.groups)
        self.deadline = num_gpu_timeout_secs
        self._members = [groups.join(each) for each in self.groups]
        self._exchanges = [Exchanges(members) for members in self._members]

    def destroy(self):
        """Leaves the groups; local."""
        for members, group in zip(self._members, self.groups):
            if members is not group:
                members.destroy()

    def get_theoretical_num_sms(self, op, group=None):
        """4: the calling thread moves the bytes."""
        return _FEWEST_SMS

    def barrier(self, use_comm_stream=True, with_cpu_sync=False, sequential=True, group=None):
        """Returns when all ranks of the group have called it."""
        self._of(group).group.barrier()

    def all_gather(self, srcs, dsts=None, group=None, num_sms=None):
        """Gathers each tensor; an EventOverlap, whose wait() gives flat views of all ranks' values in order.

        dsts: contiguous tensors of R times the elements; without them src is the rank's shard of a tensor in .storage
        that begins R shards around it, and is gathered in place.
        """
        whole = []

        def check(srcs, many, members):
            given = [None] * len(srcs) if dsts is None else list(dsts) if many else [dsts]
            if len(given) != len(srcs):
                raise InvalidArgument(f"dsts are {len(given)} tensors, srcs {len(srcs)}")
            whole.extend(self._around(src, members) if dst is None else dst for src, dst in zip(srcs, given))
            for src, dst in zip(srcs, whole):
                if dst.numel() != members.size * src.numel() or dst.dtype != src.dtype or not dst.is_contiguous():
                    raise InvalidArgument(f"dst is {describe(dst)}, src {describe(src)}: need {members.size} times as "
                                          "many elements, contiguous")

        exchanges, many, srcs = self._asked("all_gather", srcs, group, check)
        size = exchanges.group.size
        for src, dst in zip(srcs, whole):
            _bytes(dst.view(-1)).view(size, -1).copy_(self._rows(exchanges, src.reshape(1, -1), every=True))
        return _result([dst.view(-1) for dst in whole], many)

    def reduce_scatter(self, srcs, comm_precision="fp32", scale=1.0, group=None, num_sms=None):
        """Adds float32 tensors over ranks and multiplies by scale; wait() gives this rank's flat part of each.

        comm_precision: "fp32", or "bf16", in which values travel rounded. Elements are a multiple of R.
        """
        def check(srcs, many, members):
            if comm_precision not in _PRECISIONS:
                raise InvalidArgument(f"comm_precision is {comm_precision!r}, need 'fp32' or 'bf16'")
            _check_sums(srcs, many, members)

        exchanges, many, srcs = self._asked("reduce_scatter", srcs, group, check)
        return _result([self._sum(exchanges, src, _PRECISIONS[comm_precision], scale) for src in srcs], many)

    def all_reduce(self, srcs, scale=1.0, group=None, num_sms=None):
        """Adds float32 tensors over ranks and multiplies by scale, in place; wait() gives them."""
        exchanges, many, srcs = self._asked("all_reduce", srcs, group, _check_sums)
        for src in srcs:
            part = self._sum(exchanges, src, torch.float32, scale)
            gathered = self._rows(exchanges, part.reshape(1, -1), every=True)
            _bytes(src.view(-1)).view(exchanges.group.size, -1).copy_(gathered)
        return _result(srcs, many)

    @contextlib.contextmanager
    def session(self):
        """The buffer itself, as a BucketSession: nothing needs staging here."""
        yield BucketSession(self)

    def _of(self, group):
        if group is None and len(self.groups) > 1:
            raise InvalidArgument(f"this BucketBuffer has {len(self.groups)} groups: say which, group=")
        if group is not None and not any(group is each for each in self.groups):
            raise InvalidArgument("group is none of those that this BucketBuffer was made with")
        return self._exchanges[0 if group is None else [each is group for each in self.groups].index(True)]

    def _asked(self, call, srcs, group, check):
        """(exchanges, whether lists go with lists, list of sources), once all ranks ask for the same. check(srcs, many,
        group) raises InvalidArgument."""
        exchanges, many = self._of(group), not isinstance(srcs, torch.Tensor)
        srcs = list(srcs) if many else [srcs]
        try:
            for src in srcs:
                if not src.is_contiguous() or src.device.type != "cpu" or src.numel() == 0:
                    raise InvalidArgument(f"src is {describe(src)}, need contiguous elements on the CPU")
            check(srcs, many, exchanges.group)
        except InvalidArgument as error:
            exchanges.refuse(error)
        sizes = tuple(f"{str(src.dtype).replace('torch.', '')} {src.numel()}" for src in srcs)
        exchanges.agree(0, (("call", call), ("srcs", sizes)))
        return exchanges, many, [src.detach() for src in srcs]

    def _around(self, src, members):
        """The tensor in .storage of which src is this rank's shard."""
        num_bytes = src.numel() * src.element_size()
        begin = src.data_ptr() - self.storage.data_ptr() - members.rank * num_bytes
        if begin < 0 or begin + members.size * num_bytes > self.storage.numel():
            raise InvalidArgument(f"src is {describe(src)}, which is not this rank's shard of a tensor in .storage: "
                                  "give dsts")
        return self.storage[begin:begin + members.size * num_bytes].view(src.dtype)

    def _sum(self, exchanges, src, precision, scale):
        rows = self._rows(exchanges, src.view(exchanges.group.size, -1).to(precision), every=False).view(precision)
        total = torch.zeros(rows.shape[1], dtype=torch.float32)
        for row in rows:
            total += row.float()
        return total * scale

    def _rows(self, exchanges, rows, every):
        """uint8 [R, bytes]: a row of each rank, in order; every: the one row goes to all, else row r to rank r."""
        size, data = exchanges.group.size, _bytes(rows)
        data = data.expand(size, -1).contiguous() if every else data
        ids = torch.arange(size, dtype=torch.int32).view(size, 1)
        exchange = exchanges.hold(size, (("dtype", "uint8"), ("hidden", data.shape[1]), ("layout", "rank_major"),
                                         ("num_experts", size), ("top_k", 1)))
        return exchange.dispatch(data, ids, deadline=self.deadline).rows


class BucketSession:
    """What BucketBuffer.session() gives: its three calls, and tensors of their own."""

    def __init__(self, buffer):
        self.all_gather, self.reduce_scatter, self.all_reduce = (
            buffer.all_gather, buffer.reduce_scatter, buffer.all_reduce)

    def allocate(self, shapes, dtype=torch.float32, group=None):
        """A tensor of a shape, or a list of them for a list of shapes, uninitialised."""
        if len(shapes) and isinstance(shapes[0], (tuple, list, torch.Size)):
            return [torch.empty(shape, dtype=dtype) for shape in shapes]
        return torch.empty(shapes, dtype=dtype)


def _check_sums(srcs, many, members):
    for src in srcs:
        if src.dtype != torch.float32 or src.numel() % members.size:
            raise InvalidArgument(f"src is {describe(src)}, need contiguous float32, a multiple of {members.size} "
                                  "elements")


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8)


def _result(tensors, many):
    event = overlap()
    event.register_hook_after_wait(lambda: tensors if many else tensors[0])
    return event
