"""The method get_hccl_comm_name of process groups, for programs whose NPU is the CPU (install(map_npu=True)). It
returns the name by which the group is registered. The first call registers it and is collective, as in HCCL."""

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ferry.errors import InvalidArgument
from ferry.torch_npu.groups import register_group

_names = {}  # torch's name of a process group -> the name that was registered


def install():
    """Adds the method to the process groups of gloo."""
    dist.ProcessGroupGloo.get_hccl_comm_name = _comm_name


def _comm_name(backend, rank=None, init_comm=True):
    """Returns the name for group_ep. Raises InvalidArgument for a backend that belongs to no process group of this
    process."""
    found = [group for group, (kind, _) in c10d._world.pg_map.items() if kind == "gloo" and _is_of(group, backend)]
    if not found:
        raise InvalidArgument("get_hccl_comm_name: no process group has this backend; was it destroyed?")
    name = found[0].group_name
    if name not in _names:
        registered = f"hccl-{name}"
        register_group(registered, found[0])
        _names[name] = registered
    return _names[name]


def _is_of(group, backend):
    return group._get_backend(c10d.torch.device("cpu")) is backend
