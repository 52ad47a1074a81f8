"""deep_ep.utils.envs: the process group, seeds, printing, and properties of the machine.

ferry uses no NVLink here. The bandwidths by which programs divide are constants: about the speed at which a core
copies.
"""

import os
import random

import torch
import torch.distributed as dist

from ferry.deep_ep.elastic import get_logical_domain_size, get_physical_domain_size  # noqa: F401

_GBS = 10.0  # about the speed at which a core copies
_seeds = {"local": 0, "global": 0}
_rank_in_node = {"rank": 0}


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0):
    """Joins MASTER_ADDR:MASTER_PORT, by default 127.0.0.1:8361, as rank `local_rank` of node RANK of WORLD_SIZE nodes,
    over gloo.

    Sets the default type to bfloat16 and the seeds. Returns (rank, number of ranks, group of all ranks).
    """
    host, port = os.getenv("MASTER_ADDR", "127.0.0.1"), int(os.getenv("MASTER_PORT", "8361"))
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host, port  # IPv6
    num_nodes, node = int(os.getenv("WORLD_SIZE", "1")), int(os.getenv("RANK", "0"))
    size, rank = num_nodes * num_local_ranks, node * num_local_ranks + local_rank
    dist.init_process_group(backend="gloo", init_method="tcp://%s:%d" % address, world_size=size, rank=rank)
    torch.set_default_dtype(torch.bfloat16)
    _rank_in_node["rank"] = local_rank
    init_seed(seed)
    return dist.get_rank(), dist.get_world_size(), dist.new_group(list(range(size)))


def init_seed(seed: int = 0):
    """Seeds torch and random with seed + rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    _seeds.update({"global": seed, "local": seed + rank})
    torch.manual_seed(seed + rank)
    random.seed(seed + rank)


def get_local_seed():
    """The seed of this rank."""
    return _seeds["local"]


def get_global_seed():
    """The seed that all ranks have in common."""
    return _seeds["global"]


def dist_print(s: str = "", once_in_node: bool = False):
    """Prints s, on the first rank of each node only if once_in_node; then a barrier."""
    if not once_in_node or _rank_in_node["rank"] == 0:
        print(s, flush=True)
    dist.barrier()


def check_nvlink_connections(group):
    """Does nothing: ranks share memory."""


def check_torch_deterministic():
    """Asserts that torch's deterministic mode does not fill new memory, since that would write rows that are never
    read."""
    fills = torch.utils.deterministic.fill_uninitialized_memory
    assert not (torch.are_deterministic_algorithms_enabled() and fills), \
        "set torch.utils.deterministic.fill_uninitialized_memory = False"


def get_nvlink_gbs(factor: float = 0.9):
    """Returns a constant times `factor`, in GB/s: about the speed at which a core copies."""
    return _GBS * factor


def get_rdma_gbs(nic_name: str = ""):
    """Returns a constant, in GB/s."""
    return _GBS


def get_sm_read_gbs():
    """Returns a constant, in GB/s."""
    return _GBS


def get_sm_write_gbs():
    """Returns a constant, in GB/s."""
    return _GBS


def check_fast_rdma_atomic_support(nic_name: str = ""):
    """Returns False: ferry uses no atomic operations of a network card."""
    return False
