"""Handles are the tensors that DeepEP's calls return to describe a dispatch. ferry finds its state of the dispatch by
the memory of these tensors.

Inference engines rebuild and edit the tuples, detach and view the tensors, and autograd makes new Python objects for
them. So the state depends on no tuple and no Python object: all tensors of a handle lie in one block of memory, and any
one of them is enough to find the block. On the CPU the block is a numpy array that has the state as an attribute, and
torch's storages keep the array alive. On a device the block is one storage of torch, and the state is freed with it.
"""

import functools
import math
import weakref

import numpy as np
import torch

from ferry.errors import Closed, InvalidArgument

_ITEM_BYTES = {np.bool_: 1, np.uint8: 1, np.int32: 4, np.int64: 8}
_TORCH_TYPES = {np.bool_: torch.bool, np.int32: torch.int32, np.int64: torch.int64}
_alive = {}  # address of a tensor's storage -> a function that returns its memory, or None once the memory is freed


class Owner:
    """The buffer of `group` that made a handle, a hook or an event. After the buffer has left its group, check() raises
    Closed."""

    def __init__(self, name, group):
        self.name = name  # the name of the buffer's class
        self.left_group = False
        self._group = group

    def view(self):
        """The number of the group's view."""
        return self._group.view[0]

    def check(self, what):
        if self.left_group:
            raise Closed(f"the {self.name} of this {what} was destroyed, and has left its group")


class Memory(np.ndarray):
    """The bytes of a handle's tensors, with the `state` of the dispatch. `state.made_by` names the call that returned
    the handle, and `state.owner` is an Owner. The state must not refer to the tensors: such a reference cycle would
    never be freed."""

    state = None
    view_number = 0  # the view of the group in which the dispatch was made
    addresses = ()  # the addresses of its tensors; empty for views of this array

    def __del__(self, alive=_alive):
        for address in self.addresses:
            del alive[address]


def allocate(state, *parts):
    """Makes one Memory with `state`, and in it an uninitialised array for each of `parts`, (numpy scalar type, shape).

    Returns (arrays, tensors). Array i and tensor i are the same bytes.
    """
    offsets, end = _places(parts)
    memory = Memory(end, np.uint8)  # owns its bytes: numpy lets views refer to the owner only
    memory.state, memory.view_number = state, state.owner.view()
    arrays = [np.ndarray(shape, dtype, memory, offset) for offset, (dtype, shape) in zip(offsets, parts)]
    tensors = [torch.from_numpy(array) for array in arrays]
    first = _storage_address(tensors[0])
    memory.addresses = [first + offset for offset in offsets]
    _alive.update(dict.fromkeys(memory.addresses, weakref.ref(memory)))
    return arrays, tensors


class DeviceMemory:
    """The storage of a handle's tensors on a device, and the `state` of the dispatch. Both are freed with the last of
    the tensors."""

    def __init__(self, state, storage):
        self.state, self.view_number = state, state.owner.view()
        address = storage.data_ptr()

        def forget(freed):  # another storage may have the address by now
            if getattr(_alive.get(address), "_storage", None) is freed:
                del _alive[address]

        self._storage = weakref.ref(storage, forget)
        _alive[address] = self

    def __call__(self):
        return self

    def first(self, dtype, shape):
        """Returns a new tensor in the place of the first of the handle's tensors."""
        storage = self._storage()
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, shape)


def allocate_on(device, state, *parts):
    """Does what allocate() does, on a device, and returns the tensors only."""
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
    """Returns (the offset of each part, the end of the last one), in bytes."""
    offsets, end = [], 0
    for dtype, shape in parts:
        offsets.append(end)
        end += max((_ITEM_BYTES[dtype] * math.prod(shape) + 7) // 8 * 8, 8)
    return offsets, end


def find(handle, kind):
    """Returns the Memory or DeviceMemory with the tensors of `handle`, any sequence in which at least one of them
    remains. The state of the memory is a `kind`.

    Raises ferry.InvalidArgument when no entry is a tensor that a dispatch returned, or a view of one, or when that
    dispatch was of another kind, or was made in an earlier view of the group: rows lie in other places now. Raises
    ferry.Closed when the buffer of the dispatch has left its group.
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
        owner = memory.state.owner
        owner.check("handle")
        if memory.view_number != owner.view():
            raise InvalidArgument(f"the handle is of view {memory.view_number} of the group, which is over: this is "
                                  f"view {owner.view()}, and the dispatch has to be repeated")
        return memory
    raise InvalidArgument(f"the handle ({len(parts)} entries, {len(tensors)} of them tensors) has no tensor that a "
                          "dispatch of this process returned: copies of a handle's tensors do not lead to its dispatch")


def _storage_address(tensor):
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return storage.data_ptr()
