"""Nodes: which ranks share memory, as DeepEP's calls between nodes count them.

They are the hosts of the group's topology, in order of ranks. A group of one host that has more ranks than a node of
DeepEP's counts as nodes of 8, so that programs written for several nodes see their shapes on one machine.
"""

import os

from ferry.deep_ep.config import NVL_PEERS

_found = {}  # name of a torch process group -> topology of the ferry.Group that a buffer made of it


def remember(process_group, topology):
    """Notes what a buffer found out about a process group."""
    _found[getattr(process_group, "group_name", None)] = topology


def starts(topology, num_ranks):
    """First rank of each node, of a topology's text."""
    sizes = _host_sizes(topology)
    if sum(sizes) != num_ranks or len(sizes) < 2:
        return tuple(range(0, num_ranks, NVL_PEERS))
    return tuple(sum(sizes[:host]) for host in range(len(sizes)))


def domain_size(group):
    """(nodes, ranks of a node) of a torch ProcessGroup or ferry.Group; (1, R) where nodes have different sizes, and
    where nothing is known yet: a ProcessGroup's hosts are found when a buffer is made of it, or given by
    FERRY_TOPOLOGY."""
    num_ranks = group.size() if callable(group.size) else group.size
    topology = getattr(group, "topology", None)
    if topology is None:
        topology = _found.get(getattr(group, "group_name", None)) or os.environ.get("FERRY_TOPOLOGY", "")
    sizes = _host_sizes(topology)
    if sum(sizes) != num_ranks or len(set(sizes)) != 1:
        return 1, num_ranks
    return len(sizes), sizes[0]


def _host_sizes(topology):
    """Ranks of each host of a text such as "rack:2,host:2,rank:4"; [] where it names no host."""
    levels = [level.partition("@")[0].partition(":") for level in topology.split(",")]
    names = [name for name, _, _ in levels]
    if "host" not in names or names[-1] != "rank":
        return []
    groups, sizes = 1, []
    for name, _, fanout in levels:
        counts = [int(count) for count in fanout.split("+")]
        counts = counts * groups if len(counts) == 1 else counts
        if sizes:  # below the hosts
            hosts = iter(counts)
            sizes = [[next(hosts) for _ in range(sum(below))] for below in sizes]
        groups = sum(counts)
        if name == "host":
            sizes = [[1] for _ in range(groups)]
    return [sum(below) for below in sizes]
