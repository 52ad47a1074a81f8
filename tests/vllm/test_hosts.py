"""vLLM's server on two hosts, namespaces of this machine, one data parallel rank on each: its replies are those of one
rank. Run by make check-vllm."""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server import await_start, end, prompts, save_model, serve, start
from test_faults import TOLERANT, await_status, go_on, kill_engine, requests_on

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))

import hosts

PROMPTS = prompts(5)
NEW_NETWORK = 0x40000000


def enter_network(pid):
    """This thread, and those that it starts, reach what process `pid` reaches."""
    with open(f"/proc/{pid}/ns/net") as network:
        assert ctypes.CDLL(None).setns(network.fileno(), NEW_NETWORK) == 0


def on_host(bench, rank):
    """Options of start() for a server on a host of its own."""
    return dict(on=lambda words: bench.command("ab"[rank], *words), GLOO_SOCKET_IFNAME="eth0",
                VLLM_HOST_IP=hosts.address(rank))  # fmt: skip


def answers_of_two_hosts(bench, folder):
    """The first host takes requests, the second is headless; as vLLM's documents have it."""
    arguments = ["-dp", "2", "--enable-expert-parallel", "--data-parallel-size-local", "1", "--data-parallel-address",
                 hosts.address(0), "--data-parallel-rpc-port", "13345"]  # fmt: skip
    second = start(folder, folder / "b.log", *arguments, "--headless", "--data-parallel-start-rank", "1",
                   **on_host(bench, 1))  # fmt: skip
    try:
        with serve(folder, folder / "a.log", *arguments, **on_host(bench, 0)) as first:
            alone, together = first.complete(PROMPTS[0]), first.complete_all(PROMPTS)
            sent = bench.sent_bytes("b")
            again = first.complete_all(PROMPTS)
            assert "ferry takes tokens to the experts of 2 ranks" in first.text()
            return alone, together, again, bench.sent_bytes("b") - sent
    finally:
        end(second)


def answers_without_the_second_host(bench, folder):
    """Each host has a server of its own. The engine of the second is killed."""
    arguments = ["-dp", "2", *TOLERANT, "--data-parallel-size-local", "1", "--data-parallel-address", hosts.address(0),
                 "--data-parallel-rpc-port", "13345"]  # fmt: skip
    first, second = [start(folder, folder / f"{rank}.log", *arguments, "--data-parallel-rank", rank,
                           **on_host(bench, rank)) for rank in range(2)]  # fmt: skip
    try:
        await_start(first)
        before = first.complete_all(PROMPTS)
        with requests_on([first]):
            kill_engine(second)
            await_status([first], "unhealthy")
        go_on([first])
        return before, first.complete_all(PROMPTS)
    finally:
        for server in (first, second):
            end(server)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The folder of a model, and the replies of one rank."""
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "moe")
    with serve(folder, folder / "one.log", ferry=False) as server:
        return folder, server.complete_all(PROMPTS)


def on_two_hosts(run, folder):
    with hosts.Hosts(2) as bench, ThreadPoolExecutor(1, initializer=enter_network,
                                                     initargs=[bench.boxes["a"].pid]) as inside:  # fmt: skip
        return inside.submit(run, bench, folder).result()


pytestmark = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))


def test_two_hosts_say_what_one_rank_says(expected):
    folder, replies = expected
    alone, together, again, sent = on_two_hosts(answers_of_two_hosts, folder)
    assert alone == replies[0] and together == again == replies
    # Half of the rows of 12 tokens of 5 requests, two layers, come from and go to the other host.
    assert sent > 12 * 5 * 2 * 128 * 4


def test_a_host_goes_on_without_the_other(expected):
    folder, replies = expected
    assert on_two_hosts(answers_without_the_second_host, folder) == (replies, replies)
