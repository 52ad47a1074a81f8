"""The experimental parts of ElasticBuffer: all-gather sessions (AGRS), and methods that raise NotBuilt.

An all-gather is a dispatch of one row to every rank. The received rows are ordered by source rank, so they are the
gathered tensor, which is a view of the window.
"""

import contextlib
import math

import torch

from ferry.deep_ep.scalars import MOST_BYTES, MOST_TOPK, SIZE_UNIT, flag, integer, rounded_up
from ferry.errors import Error, InvalidArgument
from ferry.views import need_all_ranks

_ALIGNMENT = 32  # bytes that a tensor of a session is rounded up to


class NotBuilt(Error, NotImplementedError):
    """A part of DeepEP that ferry does not have."""

    code = "not_built"


def _engram(*_, **__):
    """Raises NotBuilt."""
    raise NotBuilt("Engram (engram_write, engram_fetch) is not built")


def _pipeline(*_, **__):
    """Raises NotBuilt."""
    raise NotBuilt("pipeline calls (pp_set_config, pp_send, pp_recv) are not built: torch.distributed has them")


class Sessions:
    """The methods of ElasticBuffer for sessions and for parts that are not built. Needs self.exchanges."""

    _in_session = False
    _gathered_in = 0  # the view in which all ranks have agreed on a gather
    _session_limits = (math.inf, math.inf)  # bytes, gathers
    _session_use = (0, 0)

    @staticmethod
    def get_agrs_num_max_session_bytes(group, shapes, dtype):
        """Returns the bytes of a session that gathers tensors of these shapes (one shape, or a sequence of shapes) from
        all ranks. Each tensor is rounded up to 32 bytes."""
        shapes = shapes if _several(shapes) else (shapes,)
        size = num_ranks(group) * torch.empty(0, dtype=dtype).element_size()
        return sum(rounded_up(size * math.prod(shape), _ALIGNMENT) for shape in shapes)

    @staticmethod
    def get_agrs_buffer_size_hint(group, num_max_session_bytes):
        """Returns num_max_session_bytes rounded up to 2 MiB. ferry does not use this hint, since it allocates memory
        when tensors are gathered."""
        return rounded_up(integer("num_max_session_bytes", num_max_session_bytes, most=MOST_BYTES), SIZE_UNIT)

    def agrs_set_config(self, num_max_session_bytes, num_max_all_gathers_per_session):
        """Sets the limits of later sessions, which are unlimited otherwise. Ends with a barrier, so it is collective.
        Raises ferry.InvalidArgument in a session."""
        if self._in_session:
            raise InvalidArgument("agrs_set_config in a session: destroy it first")
        self._session_limits = (integer("num_max_session_bytes", num_max_session_bytes, most=MOST_BYTES),
                                integer("num_max_all_gathers_per_session", num_max_all_gathers_per_session))
        self.exchanges.group.barrier()

    def create_agrs_session(self):
        """Begins a session. Raises ferry.InvalidArgument when there is one already."""
        if self._in_session:
            raise InvalidArgument("there is a session already: destroy_agrs_session ends it")
        self._in_session, self._session_use = True, (0, 0)

    def destroy_agrs_session(self):
        """Ends the session. Gathered tensors stay valid."""
        self._check_session()
        self._in_session = False

    @contextlib.contextmanager
    def agrs_new_session(self, enabled=True):
        """A context manager that begins a session and ends it. With enabled=False it does nothing."""
        enabled = flag("enabled", enabled)
        if enabled:
            self.create_agrs_session()
        try:
            yield
        finally:
            if enabled:
                self.destroy_agrs_session()

    def agrs_get_inplace_tensor(self, shapes, dtype):
        """Returns a tensor (a tuple of tensors for a sequence of shapes) for this rank to fill and to give to
        all_gather. It has memory of its own: all_gather copies it to every rank, this rank included."""
        self._check_session()
        if _several(shapes):
            return tuple(torch.empty(shape, dtype=dtype) for shape in shapes)
        return torch.empty(shapes, dtype=dtype)

    def all_gather(self, t):
        """Gathers the tensors of all ranks. Returns (gathered [R, *t.shape], wait); for a sequence (*gathered, wait).

        t is contiguous, with the same shape and dtype on every rank. wait() returns at once, since the data has arrived
        already. Gathered tensors are views of the window, and keep it alive. Needs a session. Collective.
        """
        self._check_session()
        single = isinstance(t, torch.Tensor)
        tensors = [t] if single else list(t)
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
                raise InvalidArgument(f"all_gather takes contiguous tensors, not {tensor!r:.100}")
        self._count_gathers(tensors)
        return (*[self._gather(tensor.detach()) for tensor in tensors], _arrived)

    def _check_session(self):
        if not self._in_session:
            raise InvalidArgument("no session: create_agrs_session or agrs_new_session begins one")

    def _count_gathers(self, tensors):
        size = self.exchanges.group.size
        num_bytes, gathers = self._session_use
        num_bytes += sum(rounded_up(size * tensor.numel() * tensor.element_size(), _ALIGNMENT) for tensor in tensors)
        gathers += len(tensors)
        for used, limit, what in zip((num_bytes, gathers), self._session_limits, ("bytes", "all-gathers")):
            if used > limit:
                raise InvalidArgument(f"this session would have {used} {what}, agrs_set_config allows {limit}")
        self._session_use = num_bytes, gathers

    def _gather(self, tensor):
        group = self.exchanges.group
        need_all_ranks(group)
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes == 0:
            return tensor.new_empty(group.size, *tensor.shape)
        top_k = min(group.size, MOST_TOPK)
        copies = -(-group.size // top_k)
        ids = torch.full((copies * top_k,), -1, dtype=torch.int32)
        ids[:group.size] = torch.arange(group.size, dtype=torch.int32)
        key = (("dtype", "uint8"), ("hidden", num_bytes), ("layout", "rank_major"), ("num_experts", group.size),
               ("top_k", top_k))
        if self._gathered_in != group.view[0]:  # ranks may have other exchanges: a process may be new in this view
            self.exchanges.agree(copies, key)
            self._gathered_in = group.view[0]
        exchange = self.exchanges.hold(copies, key)
        row = tensor.reshape(1, -1).view(torch.uint8).expand(copies, num_bytes).contiguous()
        received = exchange.dispatch(row, ids.view(copies, top_k), deadline=self.deadline)
        return received.rows.view(tensor.dtype).view(group.size, *tensor.shape)

    engram_write = engram_fetch = get_engram_storage_size_hint = staticmethod(_engram)
    pp_set_config = pp_send = pp_recv = get_pp_buffer_size_hint = staticmethod(_pipeline)


def _several(shapes):
    """Whether `shapes` is a sequence of shapes, and not one shape."""
    return len(shapes) > 0 and isinstance(shapes[0], (tuple, list))


def num_ranks(group):
    """Returns the number of ranks of a torch ProcessGroup or a ferry.Group."""
    return group.size() if callable(group.size) else group.size


def _arrived():
    """Does nothing: the data of an all_gather has arrived when all_gather returns."""
