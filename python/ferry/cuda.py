"""CUDA ranks: dispatch and combine of torch tensors in device memory.

    group = ferry.init()
    exchange = ferry.cuda.Exchange(group, max_tokens=128, hidden=7168, num_experts=256, top_k=8)
    received = exchange.dispatch(tokens, topk_ids)
    outputs = experts(received.rows, received.handle.tokens_per_expert)
    result = exchange.combine(outputs, received.handle, topk_weights)

Rows, their order and results are equal to those of ferry.Exchange, bit for bit, and ferry.torch accepts this exchange
too. Two things differ. First, work is issued on torch's current stream, and calls return before the work is done: an
error that a kernel finds is raised by a dispatch that waits for counts, or else by check() or finish(). Second,
received rows are valid only until the `depth`-th dispatch after theirs. docs/cuda.md has the limits.

T tokens of this rank, H hidden, K top-k, R ranks, L experts of this rank, N rows received, C rows per expert of a
padded layout. Calls ferry._core.CudaExchange; cuda_results.py has the results of a dispatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Generic, Sequence

import torch

from ferry import _core
from ferry.cuda_results import Handle, Owner, Received, view
from ferry.errors import Closed, InvalidArgument
from ferry.types import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ferry.types import Settings

__all__ = ["Exchange", "Handle", "Operation", "Received"]

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_INDICES = (torch.int64, torch.int32)


class Operation(Generic[Result]):
    """A dispatch or combine between its halves. If recv() has not been called, the next dispatch (or combine) of the
    exchange makes the receive half first."""

    def __init__(self, receive: Callable[[], None], result: Result):
        self._receive: Callable[[], None] | None = receive
        self._result = result

    def memory(self) -> Result:
        """Returns the result of recv() before it is complete: the memory to which the dispatch will write its rows and
        scales, or the output of the combine."""
        return self._result

    def recv(self) -> Result:
        """Issues the receive half on the current stream. Returns the Received of a dispatch, or the output of a
        combine."""
        receive, self._receive = self._receive, None
        if receive is not None:
            receive()
        return self._result


class Exchange:
    """Makes dispatches and combines of CUDA ranks, in a window of device memory.

    device is the device of this rank; None means torch's current one. settings are those of group.exchange
    (docs/python_reference.md). max_output_row_bytes is by default the bytes of a row of dtype, and at least those of K
    float32, which row_weights need. It must be at least 4 * hidden if experts give float32 rows.

    Every dispatch and combine is collective: all ranks make the same calls in the same order. The calls of one exchange
    are made on one stream, or on streams that wait for each other. A call with a cached handle or with
    wait_for_counts=False can be captured in a graph; the caller keeps its results as long as the graph.
    """

    def __init__(self, group: _core.Group, *, device: Any = None, **settings: Unpack[Settings]):
        try:
            index = _device_index(device)
        except Exception as error:
            group.refuse_exchange(str(error))
            raise
        self._native: _core.CudaExchange | None = _core.CudaExchange(group, index, **settings)
        self.group, self.device = group, torch.device("cuda", index)
        self.config: dict[str, Any] = dict(self._native.config)
        self.num_local_experts = self._native.num_local_experts
        self.row_capacity = self._native.row_capacity  # rows that this rank can receive
        self.device_bytes = self._native.device_bytes  # device memory of this rank's window
        self.shares_device = self._native.shares_device  # whether another rank of this process uses the same device
        self._dtype = getattr(torch, self.config["dtype"])
        self._num_dispatches = 0
        self._sent: dict[str, Operation[Any]] = {}  # name of the call -> the operation between its halves

    def dispatch(self, tokens: torch.Tensor, topk_ids: torch.Tensor | None = None,
                 topk_weights: torch.Tensor | None = None, *, handle: Handle | None = None,
                 wait_for_counts: bool = True, **unknown: Any) -> Received:
        """Sends each token to the ranks of its experts, and returns the rows that this rank receives.

        tokens: [T, H] of the exchange's dtype, or of any type of one byte if that is uint8; rows may have a pitch.
        topk_ids: int32 or int64 [T, K]; -1: not sent.
        topk_weights: float32 [T, K], sent with the rows; given by all ranks or by none.
        handle: of an earlier dispatch, whose routing is used again; topk_ids is not given then.
        wait_for_counts: the call waits on the host until the number of rows is known, and raises the errors of this
            dispatch. If False, and always with a handle, check() and finish() raise the errors.
        """
        return self._dispatch("dispatch", tokens, topk_ids, topk_weights, handle, wait_for_counts, unknown)

    def dispatch_send(self, tokens: torch.Tensor, topk_ids: torch.Tensor | None = None,
                      topk_weights: torch.Tensor | None = None, *, handle: Handle | None = None,
                      wait_for_counts: bool = True, **unknown: Any) -> Operation[Received]:
        """Issues the send half of a dispatch. recv() of the returned Operation issues the receive half."""
        received = self._dispatch("dispatch_send", tokens, topk_ids, topk_weights, handle, wait_for_counts, unknown)
        native = self.native
        operation = Operation(lambda: native.dispatch_recv(self._stream()), received)
        self._sent["dispatch"] = operation
        return operation

    def combine(self, expert_rows: torch.Tensor, handle: Handle, topk_weights: torch.Tensor | None = None, *,
                bias: torch.Tensor | Sequence[torch.Tensor] | None = None, out: torch.Tensor | None = None,
                out_dtype: torch.dtype | None = None, row_weights: torch.Tensor | None = None,
                out_topk_weights: torch.Tensor | None = None, **unknown: Any) -> torch.Tensor:
        """Sends expert rows back to the sources of their tokens. There out[t] is the biases plus the sum over k of
        topk_weights[t, k] * row, in float32 and rounded once.

        expert_rows: [N, H'] in dispatch order (padded: [L, C, H']), read in place where they are ferry's memory.
        topk_weights: float32 [T, K]; None: the plain sum.
        bias: one or two [T, H'] of out's dtype.
        out: [T, H'], written and returned; None: a new tensor of out_dtype, by default the type of the rows.
        row_weights: float32 [N] (rank_major [N, K]), sent back to out_topk_weights [T, K] by a second combine. So all
            ranks give them or none, and max_output_row_bytes must be at least 4 * K. With other layouts than rank_major
            the combine comes before the `depth`-th dispatch after the last dispatch with the handle, or after
            Received.keep_sources.
        """
        given = expert_rows, handle, topk_weights, bias, out, out_dtype
        return self._combine("combine", given, row_weights, out_topk_weights, unknown).recv()

    def combine_send(self, expert_rows: torch.Tensor, handle: Handle, topk_weights: torch.Tensor | None = None, *,
                     bias: torch.Tensor | Sequence[torch.Tensor] | None = None, out: torch.Tensor | None = None,
                     out_dtype: torch.dtype | None = None, row_weights: torch.Tensor | None = None,
                     out_topk_weights: torch.Tensor | None = None, **unknown: Any) -> Operation[torch.Tensor]:
        """Issues the send half of a combine, with the arguments of combine(). recv() of the returned Operation issues
        the receive half; until then the caller must not change the arguments."""
        given = expert_rows, handle, topk_weights, bias, out, out_dtype
        operation = self._combine("combine_send", given, row_weights, out_topk_weights, unknown)
        self._sent["combine"] = operation
        return operation

    def outputs(self, num_rows: int, dtype: torch.dtype | None = None, hidden: int | None = None) -> torch.Tensor:
        """Returns memory of the window for the expert outputs [num_rows, hidden] of the next combine, which then reads
        them in place. The caller writes to it after recv() of the combine before, not between the halves of that
        combine (docs/cuda.md). Raises InvalidArgument for more rows, or larger ones, than the exchange has room for."""
        dtype, hidden = dtype or self._dtype, hidden or self.config["hidden"]
        row_bytes, most = hidden * dtype.itemsize, self.config["max_output_row_bytes"]
        if num_rows > self.row_capacity or row_bytes > most:
            raise InvalidArgument(f"outputs: {num_rows} rows of {row_bytes} bytes, the exchange has room for "
                                  f"{self.row_capacity} of {most} (max_output_row_bytes)")
        return self._view(self.native.outputs, [num_rows, hidden], dtype)

    def check(self) -> None:
        """Raises the latest error that kernels have reported since the last check, in a broken exchange at every call.
        Does not wait for kernels."""
        self.native.check()

    def finish(self) -> None:
        """Waits for all issued work except that of graphs, and then does what check() does."""
        self.native.finish()

    def refuse_dispatch(self, why: str = "") -> None:
        """Refuses the next dispatch on all ranks. A rank that will not make the dispatch calls it instead. `why` is not
        sent."""
        self._receive("dispatch")
        self._num_dispatches += 1
        self.native.refuse_dispatch(self._stream())

    def refuse_combine(self, why: str = "") -> None:
        """Refuses the next combine on all ranks. A rank that will not make the combine calls it instead. `why` is not
        sent."""
        self._receive("combine")
        self.native.refuse_combine(self._stream())

    def close(self) -> None:
        """Closes the exchange. The window is freed when no tensor uses its memory. Local."""
        self._sent.clear()
        self._native = None

    def _stream(self) -> int:
        return torch.cuda.current_stream(self.device).cuda_stream

    @property
    def native(self) -> _core.CudaExchange:
        if self._native is None:
            raise Closed("this exchange was closed")
        return self._native

    def _view(self, address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return view(self.native, self.device, address, shape, dtype)

    def _receive(self, kind: str) -> None:
        operation = self._sent.pop(kind, None)
        if operation is not None:
            operation.recv()

    def _address(self, tensor: torch.Tensor | None) -> int:
        """Returns the address of the tensor, and 0 for None. For a tensor without elements it is some valid address of
        device memory."""
        return 0 if tensor is None else tensor.data_ptr() or self.native.outputs

    def _rows(self, tensor: torch.Tensor) -> tuple[int, int, int, torch.dtype, int]:
        hidden = tensor.shape[-1]
        num_rows = tensor.numel() // hidden if hidden else tensor.shape[0]
        pitch = 0 if tensor.is_contiguous() else tensor.stride(0) * tensor.element_size()
        return self._address(tensor), num_rows, hidden, tensor.dtype, pitch

    def _check(self, tensor: Any, name: str, dtypes: Sequence[torch.dtype], *shape: int, pitched: bool = False) -> None:
        """Raises InvalidArgument unless `tensor` has one of the dtypes and the shape (-1: any extent), is on the
        device, is contiguous (if `pitched`, only within a row), and is not a negated view. Raises it too for a tensor
        that requires a gradient while gradients are recorded."""
        if not torch.is_tensor(tensor):
            raise InvalidArgument(f"{name} is a {type(tensor).__name__}, need a torch.Tensor on {self.device}")
        if tensor.device != self.device:
            raise InvalidArgument(f"{name} is on device {tensor.device}, need {self.device}")
        found = f"{name} is {_name(tensor.dtype)} {list(tensor.shape)}"
        if tensor.dtype not in dtypes:
            raise InvalidArgument(f"{found}, need {' or '.join(map(_name, dtypes))}")
        if tensor.dim() != len(shape) or any(a >= 0 and a != b for a, b in zip(shape, tensor.shape)):
            wanted = ", ".join("any" if extent < 0 else str(extent) for extent in shape)
            raise InvalidArgument(f"{found}, need shape [{wanted}]")
        if not tensor.is_contiguous():
            if not pitched or tensor.stride(0) < tensor.shape[1] or (tensor.shape[1] > 1 and tensor.stride(1) != 1):
                raise InvalidArgument(f"{found} with strides {list(tensor.stride())}: need a contiguous tensor")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InvalidArgument(f"{name} requires a gradient: give {name}.detach(), or use ferry.torch")
        _core.with_memory(tensor, name)
        if tensor.is_neg():
            raise InvalidArgument(f"{name} is a negated view: give {name}.resolve_neg()")

    def _check_handle(self, handle: Any) -> None:
        if not isinstance(handle, Handle):
            raise InvalidArgument(f"handle is a {type(handle).__name__}, need a ferry.cuda.Handle")

    def _dispatch(self, name, tokens, topk_ids, topk_weights, handle, wait_for_counts, unknown) -> Received:
        self._receive("dispatch")
        try:
            _check_known(name, unknown)
            given = *self._dispatch_arguments(tokens, topk_ids, topk_weights, handle), bool(wait_for_counts)
        except Exception:
            self.refuse_dispatch()
            raise
        self._num_dispatches += 1
        native = getattr(self.native, name)(given, self._stream())
        owner = Owner(self.native, self.device, self.config, self.num_local_experts, self.group.size)
        handle = handle or Handle(owner, native.handle, native.num_rows)
        handle.last_dispatch = self._num_dispatches, native.sources
        return Received(owner, native, handle)

    def _dispatch_arguments(self, tokens, topk_ids, topk_weights, handle):
        if self._dtype == torch.uint8 and torch.is_tensor(tokens) and tokens.element_size() == 1:
            tokens = tokens.view(torch.uint8)
        self._check(tokens, "tokens", [self._dtype], -1, -1, pitched=True)
        ids = 0, -1, 0, False
        if handle is not None:
            self._check_handle(handle)
            if topk_ids is not None:
                raise InvalidArgument("dispatch: a cached handle brings its own top-k ids; got some as well")
        else:
            self._check(topk_ids, "topk_ids", _INDICES, -1, -1)
            ids = self._address(topk_ids), *topk_ids.shape, topk_ids.dtype == torch.int64
        if topk_weights is not None:
            self._check(topk_weights, "topk_weights", [torch.float32], len(tokens), self.config["top_k"])
        return self._rows(tokens), ids, self._address(topk_weights), None if handle is None else handle.native

    def _combine(self, name, given, row_weights, out_topk_weights, unknown) -> Operation[torch.Tensor]:
        self._receive("combine")
        try:
            _check_known(name, unknown)
            arguments, out, kept = self._combine_arguments(*given)
            scalars = self._scalar_rows(given[1], row_weights, out_topk_weights)
        except Exception:
            self.refuse_combine()
            raise
        sent_on, native, handle = torch.cuda.current_stream(self.device), self.native, arguments[0]
        getattr(native, name)(arguments, sent_on.cuda_stream)

        def receive() -> None:
            stream = torch.cuda.current_stream(self.device)
            for tensor in kept if stream != sent_on else ():
                tensor.record_stream(stream)
            if name == "combine_send":
                native.combine_recv(stream.cuda_stream)
            if scalars is not None:
                rows, returned = scalars
                to = self._address(returned), torch.float32
                native.combine((handle, self._rows(rows), to, 0, (0, 0)), stream.cuda_stream)

        return Operation(receive, out)

    def _combine_arguments(self, expert_rows, handle, topk_weights, bias, out, out_dtype):
        """Returns (the arguments of the native call before the stream, the output, the tensors that must be kept until
        the receive half)."""
        padded = torch.is_tensor(expert_rows) and expert_rows.dim() == 3
        self._check(expert_rows, "expert_rows", _FLOATS, *[-1] * (3 if padded else 2))
        self._check_handle(handle)
        num_tokens, hidden = handle.num_tokens, expert_rows.shape[-1]
        if out is None:
            out_dtype = out_dtype or expert_rows.dtype
            if out_dtype not in _FLOATS:
                raise InvalidArgument(f"out_dtype is {out_dtype}, need {' or '.join(map(_name, _FLOATS))}")
            out = torch.empty(num_tokens, hidden, dtype=out_dtype, device=self.device)
        self._check(out, "out", _FLOATS, num_tokens, hidden)
        biases = [] if bias is None else list(bias) if isinstance(bias, (tuple, list)) else [bias]
        if len(biases) > 2:
            raise InvalidArgument(f"bias has {len(biases)} tensors, need at most 2")
        for each in biases:
            self._check(each, "bias", [out.dtype], num_tokens, hidden)
        if topk_weights is not None:
            self._check(topk_weights, "topk_weights", [torch.float32], num_tokens, self.config["top_k"])
        first, second, *_ = *map(self._address, biases), 0, 0
        arguments = (handle.native, self._rows(expert_rows), (self._address(out), out.dtype),
                     self._address(topk_weights), (first, second))  # fmt: skip
        return arguments, out, [each for each in (out, topk_weights, *biases) if each is not None]

    def _scalar_rows(self, handle: Handle, row_weights: Any, returned: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns (rows [N, K], out_topk_weights) for the second combine, or None if no weights are sent back. A row
        has its weight at its k and zeros elsewhere, so the plain sums of the rows are the weights of the tokens."""
        if row_weights is None and returned is None:
            return None
        num_rows, top_k = handle.shown_rows, self.config["top_k"]
        self._check(row_weights, "row_weights", [torch.float32], *[num_rows, top_k][: 1 + handle.is_rank_major])
        if returned is None:
            returned = row_weights.new_empty(handle.num_tokens, top_k)
        self._check(returned, "out_topk_weights", [torch.float32], handle.num_tokens, top_k)
        if handle.is_rank_major:
            return row_weights, returned
        # Rows without a token may have any k: they are not read.
        k = self._sources_of(handle)[:, 2:].long().clamp_(0, top_k - 1)
        return row_weights.new_zeros(num_rows, top_k).scatter_(1, k, row_weights.unsqueeze(1)), returned

    def _sources_of(self, handle: Handle) -> torch.Tensor:
        if handle.kept_sources is not None:
            return handle.kept_sources
        number, address = handle.last_dispatch
        if self._num_dispatches - number >= self.config["depth"]:
            raise InvalidArgument(f"row_weights: the sources of these rows, of {self._num_dispatches - number} "
                                  f"dispatches ago, are gone: call Received.keep_sources() before")
        return self._view(address, [handle.shown_rows, 3], torch.int32)


def _device_index(device: Any) -> int:
    if not torch.cuda.is_available():
        if _core.cuda_num_devices() > 0:
            raise InvalidArgument(f"torch {torch.__version__} cannot use the CUDA devices of this machine")
        return 0  # the native exchange refuses it
    if device is None:
        return torch.cuda.current_device()
    chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if chosen.type != "cuda":
        raise InvalidArgument(f"device is {chosen}, need one of CUDA")
    return torch.cuda.current_device() if chosen.index is None else chosen.index


def _check_known(name: str, unknown: dict[str, Any]) -> None:
    if unknown:
        raise TypeError(f"{name}() has no argument '{next(iter(unknown))}'")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
