"""get_hccl_comm_name of process groups, for programs whose NPU is the CPU (install(map_npu=True)): the name under which
the group is registered, which the first call of it does. That call is collective, as a first call of HCCL is."""

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import ferry
from ferry.errors import InvalidArgument
from ferry.torch_npu.groups import register_group

_names = {}  # of a process group -> the name that was registered


def install():
    """Gives gloo's process groups the method."""
    dist.ProcessGroupGloo.get_hccl_comm_name = _comm_name


def _comm_name(backend, rank=None, init_comm=True):
    """The name that group_ep takes. Raises InvalidArgument for a backend of no process group of this process."""
    found = [group for group, (kind, _) in c10d._world.pg_map.items() if kind == "gloo" and _is_of(group, backend)]
    if not found:
        raise InvalidArgument("get_hccl_comm_name: no process group has this backend; was it destroyed?")
    name = found[0].group_name
    if name not in _names:
        registered = f"hccl-{name}"
        register_group(registered, ferry.init(process_group=found[0]))
        _names[name] = registered
    return _names[name]


def _is_of(group, backend):
    return group._get_backend(c10d.torch.device("cpu")) is backend
