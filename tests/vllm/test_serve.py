"""vLLM's server on CPU with ranks by ferry gives the replies of one rank, over HTTP. Run by make check-vllm."""

import functools
import http.client
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from server import processes, prompts, save_model, serve, start

PROMPTS = prompts(5)
EXPERT_PARALLEL = ("-dp", "2", "--enable-expert-parallel")
LOCAL_EXPERTS = ("-tp", "2", "--enable-expert-parallel")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, kind, experts in (("moe", "moe", 8), ("odd", "moe", 7), ("dense", "dense", 0)):
        save_model(folder / name, kind, experts)
    return folder


@pytest.fixture(scope="module")
def expected(models):
    """Greedy ids of one rank, without ferry, of the model of a name."""

    @functools.lru_cache(maxsize=None)
    def find(name, *arguments):
        with serve(models / name, models / f"{name}.one.log", *arguments, ferry=False) as server:
            found = server.complete_all(PROMPTS)
            assert server.complete(PROMPTS[0]) == found[0]
        return found

    return find


@pytest.mark.parametrize("name, arguments", [
    ("moe", EXPERT_PARALLEL),
    ("odd", EXPERT_PARALLEL),  # 7 experts on 2 ranks
    ("moe", ("-dp", "3", "--enable-expert-parallel")),
    ("moe", ("-dp", "2")),  # every rank has half of every expert
    ("dense", ("-dp", "2")),
], ids=["experts", "uneven", "three", "slices", "dense"])  # fmt: skip
def test_data_parallel_ranks_say_what_one_rank_says(models, expected, tmp_path, name, arguments):
    expected(name)  # before there are two servers
    with serve(models / name, tmp_path / "log", *arguments) as server:
        assert server.complete(PROMPTS[0]) == expected(name)[0]  # the other ranks run dummy batches
        assert server.complete_all(PROMPTS) == expected(name)
        by_ferry = f"ferry takes tokens to the experts of {arguments[1]} ranks" in server.text()
        assert by_ferry == ("--enable-expert-parallel" in arguments)
        # An engine that polls for a worker's reply would take half of a core from it.
        assert len(processes(server, "VLLM::EngineCore")) == int(arguments[1])
        assert not processes(server, "VLLM::Worker")


@pytest.mark.parametrize("arguments", [EXPERT_PARALLEL, ("-dp", "2"), LOCAL_EXPERTS],
                         ids=["experts", "slices", "local"])  # fmt: skip
def test_compiled_models_say_what_one_rank_says(models, expected, tmp_path, arguments):
    expected("moe")
    with serve(models / "moe", tmp_path / "log", *arguments, compiled=True) as server:
        assert server.complete_all(PROMPTS) == expected("moe")
        assert "enforce_eager=False" in server.text()


@pytest.mark.parametrize("name, arguments, said", [
    ("moe", LOCAL_EXPERTS, "ferry gives the experts of 2 ranks their own tokens"),
    ("odd", LOCAL_EXPERTS, "ferry gives the experts of 2 ranks their own tokens"),  # 7 experts on 2 ranks
    ("moe", ("-tp", "2"), "ferry adds the parts of 2 tensor parallel ranks"),
], ids=["experts", "uneven", "slices"])  # fmt: skip
def test_tensor_parallel_ranks_say_what_one_rank_says(models, expected, tmp_path, name, arguments, said):
    expected(name)
    with serve(models / name, tmp_path / "log", *arguments) as server:
        assert server.complete(PROMPTS[0]) == expected(name)[0]
        assert server.complete_all(PROMPTS) == expected(name)
        assert said in server.text()
        # The engine is the first rank.
        assert len(processes(server, "VLLM::EngineCore")) == len(processes(server, "VLLM::Worker")) == 1


@pytest.mark.parametrize("arguments", [EXPERT_PARALLEL, LOCAL_EXPERTS], ids=["experts", "local"])
def test_bfloat16_models_begin_as_one_rank_does(models, expected, tmp_path, arguments):
    """One rank rounds the sum of a token once, two ranks round its parts: later ids may differ."""
    bfloat16 = ("--dtype", "bfloat16")
    alone = expected("moe", *bfloat16)
    with serve(models / "moe", tmp_path / "log", *bfloat16, *arguments) as server:
        replies = server.complete_all(PROMPTS)
        assert [reply[:4] for reply in replies] == [reply[:4] for reply in alone]
        assert "torch.bfloat16" in server.text()


def test_tensor_parallel_ranks_of_two_engines_share_the_experts(models, expected, tmp_path):
    expected("moe")
    with serve(models / "moe", tmp_path / "log", "-tp", "2", *EXPERT_PARALLEL) as server:
        assert server.complete_all(PROMPTS) == expected("moe")
        assert "ferry takes tokens to the experts of 4 ranks" in server.text()


@pytest.mark.parametrize("arguments, said", [
    (("--expert-placement-strategy", "round_robin", *EXPERT_PARALLEL), "experts placed round robin"),
    (("-tp", "2", "--all2all-backend", "flashinfer_nvlink_two_sided", *EXPERT_PARALLEL),
     "tensor parallel ranks above 1 with the backend flashinfer_nvlink_two_sided"),
], ids=["round robin", "whole batches"])  # fmt: skip
def test_what_is_not_there_is_refused_by_name(models, tmp_path, arguments, said):
    server = start(models / "moe", tmp_path / "log", *arguments)
    try:
        server.process.wait(900)
        assert f"ferry.vllm: {said}" in server.text()
    finally:
        if server.process.poll() is None:
            os.killpg(server.process.pid, signal.SIGKILL)


@pytest.mark.parametrize("arguments, name", [
    (EXPERT_PARALLEL, "VLLM::EngineCore_DP1"),
    (LOCAL_EXPERTS, "VLLM::Worker"),
], ids=["engine", "worker"])  # fmt: skip
def test_a_rank_that_dies_ends_the_requests_of_the_others(models, tmp_path, arguments, name):
    with serve(models / "moe", tmp_path / "log", *arguments) as server, ThreadPoolExecutor(4) as pool:
        server.complete_all(PROMPTS)
        victim, = processes(server, name)

        def ask_on(prompt):
            """Whatever the speed of the machine, a request is under way when the rank dies."""
            until = time.monotonic() + 200
            while time.monotonic() < until:
                server.complete(prompt, 100)

        asked = [pool.submit(ask_on, prompt) for prompt in PROMPTS[:4]]
        time.sleep(1)
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        for each in asked:
            with pytest.raises((OSError, http.client.HTTPException)):
                each.result()
        assert time.monotonic() - begin < 120, server.text()[-4000:]
