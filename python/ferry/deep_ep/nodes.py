"""Computes the nodes of a group, as the calls of DeepEP between nodes count them.

The nodes are the hosts of the group's topology, in order of ranks. A group of one host with more than 8 ranks, the size
of a node in DeepEP, counts as nodes of 8. So programs for several nodes get the shapes of several nodes on one machine.
"""

import os

from ferry.deep_ep.config import NVL_PEERS

_found = {}  # name of a torch process group -> topology of the ferry.Group that was made of it


def remember(process_group, topology):
    """Stores the topology of the ferry.Group that was made of a process group, for domain_size."""
    _found[getattr(process_group, "group_name", None)] = topology


def starts(topology, num_ranks):
    """Returns the first rank of each node, as a tuple. `topology` is the text of a topology."""
    sizes = _host_sizes(topology)
    if sum(sizes) != num_ranks or len(sizes) < 2:
        return tuple(range(0, num_ranks, NVL_PEERS))
    return tuple(sum(sizes[:host]) for host in range(len(sizes)))


def domain_size(group):
    """Returns (nodes, ranks of a node) of a torch ProcessGroup or ferry.Group, or (1, R) where nodes have different
    sizes or the topology is unknown. The topology of a ProcessGroup is known after a buffer has been made of it, or
    from FERRY_TOPOLOGY."""
    num_ranks = group.size() if callable(group.size) else group.size
    topology = getattr(group, "topology", None)
    if topology is None:
        topology = _found.get(getattr(group, "group_name", None)) or os.environ.get("FERRY_TOPOLOGY", "")
    sizes = _host_sizes(topology)
    if sum(sizes) != num_ranks or len(set(sizes)) != 1:
        return 1, num_ranks
    return len(sizes), sizes[0]


def _host_sizes(topology):
    """Returns the number of ranks of each host in the text of a topology, such as "rack:2,host:2,rank:4"; [] where the
    text has no level `host`."""
    levels = [level.partition("@")[0].partition(":") for level in topology.split(",")]
    names = [name for name, _, _ in levels]
    if "host" not in names or names[-1] != "rank":
        return []
    groups, sizes = 1, []
    for name, _, fanout in levels:
        counts = [int(count) for count in fanout.split("+")]
        counts = counts * groups if len(counts) == 1 else counts
        if sizes:  # a level inside the hosts
            hosts = iter(counts)
            sizes = [[next(hosts) for _ in range(sum(below))] for below in sizes]
        groups = sum(counts)
        if name == "host":
            sizes = [[1] for _ in range(groups)]
    return [sum(below) for below in sizes]
