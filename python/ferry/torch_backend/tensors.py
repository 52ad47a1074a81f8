"""Checks the tensor arguments of collectives, copies strided tensors to contiguous memory, and counts elements."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from ferry.errors import InvalidArgument

_REDUCED = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.uint16,
            torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64, torch.bool)


def check(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Returns the tensor without its autograd history. Raises InvalidArgument unless it is a dense tensor on the
    CPU."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{name} is a {type(tensor).__name__}: a tensor is needed")
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{name} is on {tensor.device}: the backend ferry takes tensors of the CPU")
    if tensor.layout != torch.strided:
        raise InvalidArgument(f"{name} has layout {tensor.layout}: the backend ferry takes dense tensors")
    return tensor.detach()


def one(tensors: Any) -> list[torch.Tensor]:
    """Returns the tensor of a call as a list of one. torch passes such a list, and programs may pass the tensor."""
    listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(listed) != 1:
        raise InvalidArgument(f"{len(listed)} tensors are given: the backend ferry takes one")
    return listed


def summed(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """Returns a contiguous tensor as numbers that `op` can reduce; complex numbers become pairs of real numbers. Raises
    InvalidArgument for other types."""
    if tensor.dtype in _REDUCED:
        return tensor
    if tensor.dtype.is_complex and op in ("sum", "avg"):
        return torch.view_as_real(tensor)
    raise InvalidArgument(f"{op} of {tensor.dtype}: reductions take {', '.join(map(str, _REDUCED))}, and sum and avg "
                          "complex numbers")


def width(tensor: torch.Tensor) -> int:
    """Returns the count of numbers that summed() makes of each element: 2 for complex types, or else 1."""
    return 2 if tensor.dtype.is_complex else 1


class Output:
    """A tensor that a collective writes, or only reads if `written` is false. `memory` is the tensor itself if it is
    contiguous, or else a staging buffer that finish() copies to the tensor."""

    def __init__(self, tensor: torch.Tensor, name: str, filled: bool = False, written: bool = True):
        self.tensor = _check_written(tensor, name) if written else check(tensor, name)
        self.staged = not _is_plain(self.tensor)
        self.memory = self.tensor
        if self.staged:
            self.memory = torch.empty_like(self.tensor, memory_format=torch.contiguous_format)
            if filled:
                self.memory.copy_(self.tensor)

    def finish(self) -> None:
        if self.staged:
            _copy(self.memory, self.tensor)


def _check_written(tensor, name):
    checked = check(tensor, name)
    if any(stride == 0 and size > 1 for stride, size in zip(checked.stride(), checked.shape)):
        raise InvalidArgument(f"{name} has strides {checked.stride()}: elements that share memory cannot be written")
    return checked


def _copy(source, target):
    """Copies in any thread: torch.inference_mode() is of one thread, and its tensors are written inside it only."""
    with torch.inference_mode() if target.is_inference() else contextlib.nullcontext():
        target.copy_(source)


def read(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Checks the tensor and returns it as a contiguous tensor."""
    return check(tensor, name).resolve_conj().resolve_neg().contiguous()


def _is_plain(tensor):
    """Whether memory holds the elements in their order, and neither conjugated nor negated."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class OutputList:
    """A list of tensors that one call writes. `memory` is one buffer for all of them: their own memory if they are
    adjacent, or else a staging buffer that finish() copies to the tensors."""

    def __init__(self, tensors: list[torch.Tensor], name: str):
        self.tensors = [_check_written(tensor, f"{name}[{i}]") for i, tensor in enumerate(tensors)]
        same_type(self.tensors, name)
        self.counts = [tensor.numel() for tensor in self.tensors]
        together = _adjacent(self.tensors)
        self.staged = together is None
        self.memory = self.tensors[0].new_empty(sum(self.counts)) if together is None else together

    def finish(self) -> None:
        if self.staged:
            for tensor, part in zip(self.tensors, self.memory.split(self.counts)):
                _copy(part.view(tensor.shape), tensor)


def read_list(tensors: list[torch.Tensor], name: str) -> tuple[torch.Tensor, list[int]]:
    """Returns (all tensors concatenated in one dimension, the number of elements of each). Adjacent tensors are not
    copied."""
    checked = [check(tensor, f"{name}[{i}]") for i, tensor in enumerate(tensors)]
    same_type(checked, name)
    together = _adjacent(checked)
    if together is None:
        together = torch.cat([tensor.reshape(-1) for tensor in checked])
    return together, [tensor.numel() for tensor in checked]


def same_type(tensors: list[torch.Tensor], name: str) -> None:
    if not tensors:
        raise InvalidArgument(f"{name} is an empty list")
    for i, tensor in enumerate(tensors):
        if tensor.dtype != tensors[0].dtype:
            raise InvalidArgument(f"{name}[{i}] is {tensor.dtype}, and {name}[0] is {tensors[0].dtype}")


def row_counts(tensor: torch.Tensor, splits: Sequence[int] | None, num_ranks: int, name: str) -> list[int]:
    """Returns the number of elements for each rank. Rank r gets splits[r] rows of the first dimension, or without
    splits an equal part. `splits` may be an array of integers, as Megatron-Core passes it. Raises InvalidArgument for
    splits that do not fit."""
    rows = tensor.shape[0] if tensor.dim() else 1
    splits = [] if splits is None else [operator.index(split) for split in splits]
    if not splits:
        if rows % num_ranks:
            raise InvalidArgument(f"{name} has {rows} rows, which {num_ranks} ranks do not divide")
        return [tensor.numel() // num_ranks] * num_ranks
    if len(splits) != num_ranks or sum(splits) != rows or min(splits) < 0:
        raise InvalidArgument(f"the splits of {name} are {list(splits)}: {num_ranks} numbers that are not negative are "
                              f"needed, whose sum is its {rows} rows")
    row = math.prod(tensor.shape[1:])
    return [split * row for split in splits]


def _adjacent(tensors):
    """Returns one tensor of one dimension over the memory of all tensors if they are adjacent parts of one storage, or
    else None."""
    first = tensors[0]
    offset = first.storage_offset()
    storage = first.untyped_storage().data_ptr()
    for tensor in tensors:
        if not _is_plain(tensor):
            return None
        if tensor.numel() and (tensor.storage_offset() != offset or tensor.untyped_storage().data_ptr() != storage):
            return None
        offset += tensor.numel()
    return first.as_strided((offset - first.storage_offset(),), (1,))
