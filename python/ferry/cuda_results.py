"""Received and Handle are the results of a dispatch of ferry.cuda. Their torch tensors are views of ferry's device
memory.

Calls ferry._core. torch imports such memory by numpy's names of types, so numpy must be installed."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, Sequence

import torch

from ferry import _core

# Names of types in __cuda_array_interface__; integers of the same width for types that it does not have.
_TYPES = {torch.float32: "<f4", torch.float16: "<f2", torch.bfloat16: "<i2", torch.int64: "<i8", torch.int32: "<i4"}


class _Memory:
    """Device memory of ferry in the form that torch imports. The tensor keeps this object alive, which keeps the owner
    alive."""

    def __init__(self, owner: Any, address: int, shape: Sequence[int], name: str):
        self.owner = owner
        self.__cuda_array_interface__ = dict(shape=tuple(shape), typestr=name, data=(address, False), version=3)


def view(owner: Any, device: torch.device, address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns the memory at `address` as a dense tensor, which keeps `owner` alive."""
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    memory = _Memory(owner, address, shape, _TYPES.get(dtype, "|u1"))
    return torch.as_tensor(memory, device=device).view(dtype)


class Owner(NamedTuple):
    """The exchange that owns the memory of the results."""

    native: _core.CudaExchange
    device: torch.device
    config: dict[str, Any]
    num_local_experts: int
    num_ranks: int


class Handle:
    """The routing of a dispatch, for any number of combines and cached dispatches of its exchange.

    Tensors are views of device memory, which the dispatch writes. host_* are lists on the host and are read without
    waiting for the device. L experts of this rank, R ranks.
    """

    def __init__(self, owner: Owner, native: _core.CudaHandle, shown_rows: int):
        self.native, self._device = native, owner.device
        self._num_local, self._num_ranks = owner.num_local_experts, owner.num_ranks
        self.is_rank_major = owner.config["layout"] == "rank_major"
        self.shown_rows = shown_rows  # Received.num_rows, also of cached dispatches
        self.last_dispatch = 0, 0  # the last dispatch with this routing: (its number, the address of its sources)
        self.kept_sources: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that this rank dispatched, T."""
        return self.native.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows received, gaps and padding included; -1 while the number is not known on the host."""
        return self.native.num_rows

    @property
    def host_tokens_per_expert(self) -> list[int]:
        """[L]: rows of each local expert; empty while the numbers are not known on the host."""
        return list(self.native.tokens_per_expert)

    @property
    def host_aligned_tokens_per_expert(self) -> list[int]:
        """[L]: host_tokens_per_expert, each rounded up to expert_alignment."""
        return list(self.native.aligned_tokens_per_expert)

    @property
    def tokens_per_expert(self) -> torch.Tensor:
        """int64 [L]: rows of each local expert."""
        return self._counts(self.native.device_tokens_per_expert, self._num_local)

    @property
    def aligned_tokens_per_expert(self) -> torch.Tensor:
        """int64 [L]: tokens_per_expert, each rounded up to expert_alignment."""
        return self._counts(self.native.device_aligned_tokens_per_expert, self._num_local)

    @property
    def expert_offsets(self) -> torch.Tensor:
        """int64 [L + 1]: first row of each local expert, then num_rows; empty for rank_major."""
        return self._counts(self.native.device_expert_offsets, 0 if self.is_rank_major else self._num_local + 1)

    @property
    def running_counts(self) -> torch.Tensor:
        """int64 [L * R]: running sum of rows over (local expert, source rank)."""
        return self._counts(self.native.device_running_counts, self._num_local * self._num_ranks)

    @property
    def running_rows_per_rank(self) -> torch.Tensor:
        """int64 [R]: the running sum of rows over source ranks with layout rank_major; empty with other layouts."""
        return self._counts(self.native.device_running_rows_per_rank, self._num_ranks if self.is_rank_major else 0)

    def _counts(self, address: int, size: int) -> torch.Tensor:
        return view(self.native, self._device, address, [size], torch.int64)

    def __repr__(self) -> str:
        return f"<ferry.cuda.Handle of {self.num_tokens} tokens, {self.num_rows} rows>"


class Received:
    """The rows that a dispatch received: views of the window, valid until the `depth`-th dispatch after it.

    N is the number of rows, gaps and padding included. If the dispatch did not wait for counts, N is the largest number
    of rows that could arrive: the handle's counts in device memory then say which rows hold tokens, and the other rows
    are undefined.
    """

    def __init__(self, owner: Owner, native: _core.CudaReceived, handle: Handle):
        self._owner, self._native, self.handle = owner.native, native, handle
        self._device, self._config, self._num_local = owner.device, owner.config, owner.num_local_experts
        self.num_rows = handle.shown_rows

    @functools.cached_property
    def rows(self) -> torch.Tensor:
        """The rows [N, H]; with layout padded [L, C, H]."""
        return self._by_expert(self._native.data, self._config["hidden"], getattr(torch, self._native.dtype))

    @functools.cached_property
    def sources(self) -> torch.Tensor:
        """int32 [N, 3]: source rank, token and k of each row. The rank is -1 in gaps."""
        return self._view(self._native.sources, [self.num_rows, 3], torch.int32)

    @functools.cached_property
    def weights(self) -> torch.Tensor | None:
        """The weights, float32 [N]; with layout rank_major [N, K], 0 where the expert is not local. None without
        topk_weights."""
        if not self._native.weights:
            return None
        shape = [self.num_rows, self._config["top_k"]][: 1 + self.handle.is_rank_major]
        return self._view(self._native.weights, shape, torch.float32)

    @functools.cached_property
    def topk_ids(self) -> torch.Tensor | None:
        """With layout rank_major int32 [N, K]: the local expert at its k, and -1 elsewhere. None with other layouts."""
        if not self.handle.is_rank_major:
            return None
        return self._view(self._native.topk_ids, [self.num_rows, self._config["top_k"]], torch.int32)

    @functools.cached_property
    def scales(self) -> torch.Tensor | None:
        """Scales of the wire format, [N, n], with layout padded [L, C, n]: float32, with fp8_ue8m0 int32. None for rows
        without scales."""
        if not self._native.scale_columns:
            return None
        dtype = torch.int32 if self._config["wire"] == "fp8_ue8m0" else torch.float32
        return self._by_expert(self._native.scales, self._native.scale_columns, dtype)

    def keep_sources(self) -> None:
        """Copies `sources` to the handle. A combine with row_weights needs the copy if other dispatches come before
        it."""
        if not self.handle.is_rank_major and self.handle.kept_sources is None:
            self.handle.kept_sources = self.sources.clone()

    def _view(self, address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return view(self._owner, self._device, address, shape, dtype)

    def _by_expert(self, address: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        rows = self._view(address, [self.num_rows, columns], dtype)
        if self._config["layout"] != "padded":
            return rows
        return rows.view(self._num_local, self._config["expert_capacity"], columns)
