"""vLLM's server on two hosts, namespaces of this machine, one data parallel rank on each: its replies are those of one
rank. Run by make check-vllm."""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server import end, prompts, save_model, serve, start

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))

import hosts

PROMPTS = prompts(5)
NEW_NETWORK = 0x40000000


def enter_network(pid):
    """This thread, and those that it starts, reach what process `pid` reaches."""
    with open(f"/proc/{pid}/ns/net") as network:
        assert ctypes.CDLL(None).setns(network.fileno(), NEW_NETWORK) == 0


def answers_of_two_hosts(bench, folder):
    """The first host takes requests, the second is headless; as vLLM's documents have it."""
    arguments = ["-dp", "2", "--enable-expert-parallel", "--data-parallel-size-local", "1", "--data-parallel-address",
                 hosts.address(0), "--data-parallel-rpc-port", "13345"]  # fmt: skip
    there = {name: dict(on=lambda words, name=name: bench.command(name, *words), GLOO_SOCKET_IFNAME="eth0",
                        VLLM_HOST_IP=hosts.address(index)) for index, name in enumerate("ab")}  # fmt: skip
    second = start(folder, folder / "b.log", *arguments, "--headless", "--data-parallel-start-rank", "1", **there["b"])
    try:
        with serve(folder, folder / "a.log", *arguments, **there["a"]) as first:
            alone, together = first.complete(PROMPTS[0]), first.complete_all(PROMPTS)
            sent = bench.sent_bytes("b")
            again = first.complete_all(PROMPTS)
            assert "ferry takes tokens to the experts of 2 ranks" in first.text()
            return alone, together, again, bench.sent_bytes("b") - sent
    finally:
        end(second)


@pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
def test_two_hosts_say_what_one_rank_says(tmp_path):
    save_model(tmp_path, "moe")
    with serve(tmp_path, tmp_path / "one.log", ferry=False) as server:
        expected = server.complete_all(PROMPTS)
    with hosts.Hosts(2) as bench, ThreadPoolExecutor(1, initializer=enter_network,
                                                     initargs=[bench.boxes["a"].pid]) as inside:  # fmt: skip
        alone, together, again, sent = inside.submit(answers_of_two_hosts, bench, tmp_path).result()
    assert alone == expected[0] and together == again == expected
    # Half of the rows of 12 tokens of 5 requests, two layers, come from and go to the other host.
    assert sent > 12 * 5 * 2 * 128 * 4
