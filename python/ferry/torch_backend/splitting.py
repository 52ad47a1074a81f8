"""Makes groups of some ranks of a group, for `split_group`."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ferry.errors import InvalidArgument


class Splitting:
    """The methods of a group that torch calls for split_group: `split` from torch 2.14 on, and `split_group` in torch
    2.13, where the group of ferry is the process group itself."""

    _store: dist.Store
    _timeout: timedelta
    _group_id: str

    def _begin_splitting(self) -> None:
        self._num_splits = itertools.count()

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def options(self) -> c10d.Backend.Options:
        """New options with the timeout of this group; torch changes them and passes them to split()."""
        return c10d.Backend.Options("ferry", self._timeout)

    def split(self, store: dist.Store, ranks: list[int], opts: c10d.Backend.Options) -> Any:
        """Makes the group of `ranks`, which are ranks of this group in the order of the new one. Collective over all
        ranks of this group."""
        part = self._part(store, ranks, opts._timeout, opts.group_name)
        if part is None:  # torch dereferences the result
            raise InvalidArgument(f"rank {self.rank()} is in no group of this split, whose ranks are {ranks}: torch "
                                  f"{torch.__version__} needs a group for every rank from a backend in Python; "
                                  "new_group does not")
        return part

    def split_group(self, ranks: list[int], timeout: timedelta | None = None, opts: Any = None,
                    group_name: str | None = None, group_desc: str | None = None, device_types: Any = None) -> Any:
        """Makes the group of `ranks` as split() does; None on the other ranks."""
        name = group_name or f"{self._group_id}:split:{'_'.join(map(str, ranks))}"
        part = self._part(self._store, ranks, timeout or self._timeout, name)
        if part is not None:
            part._set_group_name(name)
            part._set_group_desc(group_desc or name)
        return part

    def _part(self, store, ranks, timeout, name):
        number = next(self._num_splits)  # the keys of two splits into the same ranks differ
        if self.rank() not in ranks:
            return None
        options = dist.distributed_c10d._DistributedBackendOptions()
        options.store = dist.PrefixStore(f"split {number}/{'_'.join(map(str, ranks))}", store)
        options.group_rank, options.group_size = ranks.index(self.rank()), len(ranks)
        options.timeout, options.group_id = timeout, name
        return type(self)(options)
