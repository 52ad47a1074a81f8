"""Handles: the tensors that DeepEP's calls hand out to describe a dispatch, and what ferry keeps behind them.

Engines rebuild and edit the tuples, detach and view their tensors, and autograd makes new Python objects of them. So
nothing hangs on a tuple or an object: all tensors of a handle lie in one memory, and whichever of them survives leads
to it. The memory is a numpy array that carries the state and that torch's storages keep alive.
"""

import functools
import math
import weakref

import numpy as np
import torch

from ferry.errors import InvalidArgument

_ITEM_BYTES = {np.bool_: 1, np.uint8: 1, np.int32: 4, np.int64: 8}
_alive = {}  # address of a tensor's storage -> weak reference to the Memory it lies in


class Memory(np.ndarray):
    """The bytes of a handle's tensors. `state`, whose `made_by` names the call that returned the handle, must not refer
    to them: such a circle would never be freed."""

    state = None
    addresses = ()  # of its tensors; views of it have none

    def __del__(self, alive=_alive):
        for address in self.addresses:
            del alive[address]


def allocate(state, *parts):
    """(arrays, tensors): the `parts`, each (numpy scalar type, shape), uninitialised in one Memory with `state`.

    Array i and tensor i are the same bytes.
    """
    offsets, end = _places(parts)
    memory = Memory(end, np.uint8)  # owns its bytes: numpy lets views refer to the owner only
    memory.state = state
    arrays = [np.ndarray(shape, dtype, memory, offset) for offset, (dtype, shape) in zip(offsets, parts)]
    tensors = [torch.from_numpy(array) for array in arrays]
    first = _storage_address(tensors[0])
    memory.addresses = [first + offset for offset in offsets]
    _alive.update(dict.fromkeys(memory.addresses, weakref.ref(memory)))
    return arrays, tensors


@functools.lru_cache(maxsize=64)
def _places(parts):
    """(where each begins, where the last one ends), bytes."""
    offsets, end = [], 0
    for dtype, shape in parts:
        offsets.append(end)
        end += max((_ITEM_BYTES[dtype] * math.prod(shape) + 7) // 8 * 8, 8)
    return offsets, end


def find(handle, kind):
    """The Memory that the tensors of a handle (any sequence) lie in, or those of them that are left; its state is a
    `kind`.

    Raises ferry.InvalidArgument when none is a tensor, or a view of one, that a dispatch returned, or when that
    dispatch was of another kind.
    """
    parts = handle if isinstance(handle, (tuple, list)) else [handle]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    for tensor in tensors:
        alive = _alive.get(_storage_address(tensor))
        memory = alive and alive()
        if memory is None:
            continue
        if not isinstance(memory.state, kind):
            raise InvalidArgument(f"the handle is of {memory.state.made_by}, need one of {kind.made_by}")
        return memory
    raise InvalidArgument(f"the handle ({len(parts)} entries, {len(tensors)} of them tensors) has no tensor that a "
                          "dispatch of this process returned: copies of a handle's tensors do not lead to its dispatch")


def _storage_address(tensor):
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return storage.data_ptr()
