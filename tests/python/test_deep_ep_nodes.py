"""DeepEP's calls between nodes: nodes that are simulated on one machine, and two namespaces that are two hosts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.conformance.low_latency_case import Case, expected_sum
from ferry.deep_ep import Buffer, ElasticBuffer, get_logical_domain_size, get_physical_domain_size, nodes
from low_latency_calls import check_received, combine, dispatch, run_experts
from ports import free_port
from test_deep_ep_buffer import outputs_of, send

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "programs" / "normal_kernels.py"
WORDS = [sys.executable, "-m", "ferry.deep_ep", "--map-cuda", str(PROGRAM), "--num-processes", "2", "--num-tokens",
         "12", "--hidden", "128", "--num-topk", "3", "--num-experts", "8"]


@pytest.mark.parametrize("topology, num_ranks, starts, domain", [
    ("host:1,rank:4", 4, (0,), (1, 4)), ("rank:12", 12, (0, 8), (1, 12)), ("host:2,rank:2", 4, (0, 2), (2, 2)),
    ("host:2@100Gbit/s,rank:1+3", 4, (0, 1), (1, 4)), ("rack:2,host:2+1,rank:2", 6, (0, 2, 4), (3, 2)),
    ("host:2,numa:2,rank:1+2+3+4", 10, (0, 3), (1, 10)), ("host:2,numa:1+2,rank:2", 6, (0, 2), (1, 6)),
    ("", 3, (0,), (1, 3))])
def test_nodes_of_a_topology(topology, num_ranks, starts, domain):
    class Group:
        size = num_ranks

    Group.topology = topology
    assert nodes.starts(topology, num_ranks) == starts and nodes.domain_size(Group) == domain


def summed_by_node(inputs, rank, rows, biases, starts):
    """The sum as between nodes: biases, then for each node the sum over its ranks, rounded."""
    of_node = {r: max(n for n, start in enumerate(starts) if start <= r) for r in range(inputs.num_ranks)}
    out = torch.zeros(inputs.num_tokens[rank], rows[0].shape[1])
    for token in range(len(out)):
        for bias in biases:
            out[token] += bias[token].float()
        sums = {}
        for owner in inputs.ranks_of(rank, token):
            place = inputs._places[owner][rank, token]
            sums.setdefault(of_node[owner], []).append(rows[owner][place].float())
        for node in sorted(sums):
            total = torch.zeros(rows[0].shape[1])
            for row in sums[node]:
                total = total + row
            out[token] += total.to(rows[0].dtype).float()
    return out.to(rows[0].dtype)


@pytest.mark.parametrize("topology", ["host:2,rank:2", "host:2,rank:1+3", "host:4,rank:1"])
def test_normal_kernels(topology):
    inputs = Inputs(3, [9, 0, 23, 5], num_experts=8, top_k=6, unused=0.1)
    starts = nodes.starts(topology, 4)

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        mask = inputs.mask(rank)
        of_node = torch.stack([part.any(1) for part in mask.tensor_split(list(starts[1:]), dim=1)], dim=1)
        _, per_node, *_ = buffer.get_dispatch_layout(inputs.topk_idx[rank], 8)
        assert same_bits(per_node, of_node.sum(0).int())
        recv_x, idx, weights, counts, handle, _ = send(buffer, inputs, rank)
        assert same_bits(recv_x, inputs.received(rank, inputs.x)) and counts == inputs.expert_list(rank)
        assert same_bits(idx, inputs.received_topk(rank)[0]) and same_bits(weights, inputs.received_topk(rank)[1])
        assert len(handle) == 10 and handle[1].shape[0] == len(starts) and handle[8].shape == (len(mask), len(starts))
        sources = torch.tensor([source for source, _ in inputs.arrivals(rank)], dtype=torch.int64)
        node = torch.searchsorted(torch.tensor(starts), sources, right=True) - 1
        assert handle[7].view(torch.int32)[:, 0].tolist() == node.tolist()
        assert handle[-4].tolist() == [int((sources <= r).sum()) for r in range(4)]
        outputs, bias = outputs_of(inputs), torch.randn(len(mask), inputs.hidden).bfloat16()
        combined, home, _ = buffer.internode_combine(outputs[rank], handle, weights, bias=bias)
        assert same_bits(combined, summed_by_node(inputs, rank, outputs, [bias], starts))
        torch.testing.assert_close(home, inputs.combined(rank, [inputs.received_topk(r)[1] for r in range(4)]))
        assert same_bits(buffer.internode_dispatch(inputs.x[rank], handle)[0], recv_x)

    ferry.run_threads(4, body, topology=topology)


def test_low_latency_and_elastic_between_nodes():
    inputs, case = Inputs(5, [9, 0, 12, 5], num_experts=8, top_k=3), Case(4, seed=2)

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=13)
        assert buffer.get_physical_domain_size() == get_physical_domain_size(group) == (2, 2)
        assert buffer.get_logical_domain_size() == get_logical_domain_size(group) == (1, 4)
        for expand in (False, True):
            recv_x, _, _, handle, _ = buffer.dispatch(inputs.x[rank], topk_idx=inputs.topk_idx[rank], num_experts=8,
                                                      do_expand=expand)
            assert expand or same_bits(recv_x, inputs.received(rank, inputs.x))
            out, _, _ = buffer.combine(torch.ones_like(recv_x), handle)
            ids = inputs.topk_idx[rank]
            copies = (ids >= 0).sum(1) if expand else inputs.mask(rank).sum(1)
            assert torch.equal(out.float(), copies[:, None].float().expand(out.shape))
        low = Buffer(group, low_latency_mode=True)
        received, counts, handle, _, _ = dispatch(low, case, "fp8")
        check_received(case, rank, "fp8", received, counts, handle)
        summed, *_ = combine(low, case, run_experts(case, rank, received, counts, "fp8"), handle)
        torch.testing.assert_close(summed.float(), expected_sum(case, rank, "fp8").float(), rtol=2e-2, atol=2e-2)

    ferry.run_threads(4, body, topology="host:2,rank:2")


def environment(node, **more):
    base = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "MASTER_ADDR")}
    return {**base, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "RANK": str(node), **more}


def check_programs(commands, environments):
    started = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for words, env in zip(commands, environments)]
    for node, program in enumerate(started):
        said = program.communicate(timeout=240)[0]
        assert program.returncode == 0 and f"normal kernels passed on node {node}" in said, said


def test_a_program_on_two_nodes_of_one_machine():
    more = {"FERRY_TOPOLOGY": "host:2,rank:2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    check_programs([WORDS, WORDS], [environment(node, **more) for node in range(2)])


def test_a_program_on_two_hosts():
    sys.path.insert(0, str(ROOT / "tests" / "hosts"))
    import hosts

    try:
        with hosts.Hosts(2) as bench:
            more = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "eth0"}
            check_programs([bench.command(name, *WORDS) for name in bench.names],
                           [environment(node, **more) for node in range(2)])
    except hosts.Unavailable as reason:
        pytest.skip(f"no hosts on this machine: {reason}")
