"""Handles: the tensors that DeepEP's calls hand out to describe a dispatch, and what ferry keeps behind them.

Engines rebuild and edit the tuples, detach and view their tensors, and autograd makes new Python objects of them. So
nothing hangs on a tuple or an object: all tensors of a handle lie in one memory, and whichever of them survives leads
to it. On the CPU the memory is a numpy array that carries the state and that torch's storages keep alive; on a device
it is one storage of torch, which the state outlives by nothing.
"""

import functools
import math
import weakref

import numpy as np
import torch

from ferry.errors import Closed, InvalidArgument

_ITEM_BYTES = {np.bool_: 1, np.uint8: 1, np.int32: 4, np.int64: 8}
_TORCH_TYPES = {np.bool_: torch.bool, np.int32: torch.int32, np.int64: torch.int64}
_alive = {}  # address of a tensor's storage -> what returns the memory it lies in, or None


class Owner:
    """What handles and hooks know of the buffer that made them. Once it was destroyed with its group they lead nowhere.
    """

    def __init__(self, name):
        self.name = name  # of its class
        self.left_group = False

    def check(self, what):
        if self.left_group:
            raise Closed(f"the {self.name} of this {what} was destroyed, and has left its group")


class Memory(np.ndarray):
    """The bytes of a handle's tensors. `state`, whose `made_by` names the call that returned the handle and whose
    `owner` is the Owner, must not refer to them: such a circle would never be freed."""

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


class DeviceMemory:
    """The storage of a handle's tensors on a device, as long as one of them is left, and the `state` behind it."""

    def __init__(self, state, storage):
        self.state = state
        address = storage.data_ptr()

        def forget(freed):  # the address may be another storage's by now
            if getattr(_alive.get(address), "_storage", None) is freed:
                del _alive[address]

        self._storage = weakref.ref(storage, forget)
        _alive[address] = self

    def __call__(self):
        return self

    def first(self, dtype, shape):
        """The first of the tensors, anew."""
        storage = self._storage()
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, shape)


def allocate_on(device, state, *parts):
    """allocate() on a device: the tensors."""
    offsets, end = _places(parts)
    block = torch.empty(end, dtype=torch.uint8, device=device)
    DeviceMemory(state, block.untyped_storage())
    tensors = []
    for offset, (dtype, shape) in zip(offsets, parts):
        part = block[offset : offset + _ITEM_BYTES[dtype] * math.prod(shape)]
        tensors.append(part.view(_TORCH_TYPES[dtype]).view(shape))
    return tensors


@functools.lru_cache(maxsize=64)
def _places(parts):
    """(where each begins, where the last one ends), bytes."""
    offsets, end = [], 0
    for dtype, shape in parts:
        offsets.append(end)
        end += max((_ITEM_BYTES[dtype] * math.prod(shape) + 7) // 8 * 8, 8)
    return offsets, end


def find(handle, kind):
    """The Memory, or DeviceMemory, that the tensors of a handle (any sequence) lie in, or those of them that are left;
    its state is a `kind`.

    Raises ferry.InvalidArgument when none is a tensor, or a view of one, that a dispatch returned, or when that
    dispatch was of another kind; ferry.Closed when its buffer has left its group.
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
        memory.state.owner.check("handle")
        return memory
    raise InvalidArgument(f"the handle ({len(parts)} entries, {len(tensors)} of them tensors) has no tensor that a "
                          "dispatch of this process returned: copies of a handle's tensors do not lead to its dispatch")


def _storage_address(tensor):
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return storage.data_ptr()
