"""vLLM's `--enable-fault-tolerance` with ranks by ferry: engines go on after a fault. Run by make check-vllm."""

import contextlib
import http.client
import json
import os
import signal
import threading
import time

import pytest
from safetensors.torch import load_file, save_file
from server import VOCABULARY, end, processes, prompts, save_model, serve, serve_engines, start

TOLERANT = ("--enable-expert-parallel", "--enable-fault-tolerance")
PROMPTS = prompts(4)
BAD_ID = VOCABULARY - 1  # its embedding is NaN, which ferry refuses

# A plug-in of vLLM: a part of the step of rank 1 raises as long as a file exists.
PLUGIN = """
import os
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

def use():
    part = getattr(CPUModelRunner, os.environ["PART"])

    def part_or_raise(self, *args, **kwargs):
        if os.path.exists(os.environ["FAULT"]) and self.parallel_config.data_parallel_rank == 1:
            raise MemoryError("no memory for this step")
        return part(self, *args, **kwargs)

    setattr(CPUModelRunner, os.environ["PART"], part_or_raise)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """7 experts, so that ranks own different numbers of them."""
    folder = tmp_path_factory.mktemp("models") / "shared"
    save_model(folder, "shared", 7)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][BAD_ID] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def expected(model):
    """Greedy ids of one rank, without ferry."""
    with serve(model, model.parent / "one.log", ferry=False) as server:
        return server.complete_all(PROMPTS)


def status(server):
    engine, = json.loads(server.ask("GET", "/fault_tolerance/status")[1])["engines"]
    return engine


def await_status(servers, wanted, seconds=60):
    until = time.monotonic() + seconds
    while not all(status(server)["status"] == wanted for server in servers):
        assert time.monotonic() < until, [status(server) for server in servers]
        time.sleep(0.2)


def retry(servers):
    for server in servers:
        assert server.ask("POST", "/fault_tolerance/apply", '{"instruction": "retry"}')[0] == 202


def go_on(servers):
    retry(servers)
    await_status(servers, "healthy")


def fail_to_go_on(server, why, seconds=60):
    """A retry of the server ends with an error that says why."""
    retry([server])
    until = time.monotonic() + seconds
    while why not in status(server).get("ft_error", ""):
        assert time.monotonic() < until, status(server)
        time.sleep(0.2)


@contextlib.contextmanager
def requests_on(servers):
    """Requests are under way on all servers; what becomes of them is not looked at. One that a server has not begun
    when its engine fails waits for a retry, so it may end after this."""
    stop = time.monotonic() + 300

    def ask_on(server):
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            while time.monotonic() < stop:
                if len(server.complete(PROMPTS[0], 100)) < 100:
                    return

    for server in servers:
        threading.Thread(target=ask_on, args=[server], daemon=True).start()
    time.sleep(1)
    try:
        yield
    finally:
        stop = 0


def kill_engine(server):
    pid, = processes(server, "VLLM::EngineCore")
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("options", [{}, {"compiled": True}, {"VLLM_CPU_OMP_THREADS_BIND": "auto"}],
                         ids=["eager", "compiled", "worker process"])  # fmt: skip
def test_engines_go_on_without_lost_ones(model, expected, tmp_path, options):
    with serve_engines(model, tmp_path, 3, *TOLERANT, **options) as servers:
        assert [server.complete_all(PROMPTS) for server in servers] == [expected] * 3

        servers[1].complete([3, BAD_ID, 4])  # ferry refuses its numbers on all ranks
        await_status(servers, "unhealthy")
        go_on(servers)
        time.sleep(3)  # the wave of the engines ends, though only one of them had a request
        assert [server.complete_all(PROMPTS) for server in servers] == [expected] * 3

        for lost in (2, 1):
            with requests_on(servers[:lost]):
                kill_engine(servers[lost])
                await_status(servers[:lost], "unhealthy")
            go_on(servers[:lost])
            assert [server.complete_all(PROMPTS) for server in servers[:lost]] == [expected] * lost
        assert "ferry goes on with ranks [0] in view" in servers[0].text()


@pytest.mark.parametrize("part", ["execute_model", "sample_tokens"])
def test_a_step_that_raises_on_one_rank_ends_that_of_the_others(model, expected, tmp_path, part):
    (tmp_path / "faulty.py").write_text(PLUGIN)
    (tmp_path / "faulty-1.dist-info").mkdir()
    (tmp_path / "faulty-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (tmp_path / "faulty-1.dist-info" / "entry_points.txt").write_text("[vllm.general_plugins]\nfaulty = faulty:use\n")
    fault, prompt = tmp_path / "fault", [7 * i % BAD_ID for i in range(100)]
    options = dict(PYTHONPATH=str(tmp_path), FAULT=str(fault), PART=part)
    with serve_engines(model, tmp_path, 2, *TOLERANT, "--block-size", "32", **options) as servers:
        assert servers[0].complete_all(PROMPTS) == expected
        fault.touch()
        begin = time.monotonic()
        servers[1].complete(prompt)
        await_status(servers, "unhealthy")
        assert time.monotonic() - begin < 60
        assert status(servers[1])["fault_info"] == "MemoryError"
        fault.unlink()
        go_on(servers)
        assert [server.complete_all(PROMPTS) for server in servers] == [expected] * 2
        # vLLM noted that its cache has the keys of this prompt, which the step had to compute.
        assert servers[1].complete(prompt) == servers[0].complete(prompt)


def test_a_retry_that_fails_can_be_repeated(model, expected, tmp_path):
    weights, away = model / "model.safetensors", model / "away"
    with serve_engines(model, tmp_path, 2, *TOLERANT) as servers:
        with requests_on(servers[:1]):
            kill_engine(servers[1])
            await_status(servers[:1], "unhealthy")
        weights.rename(away)
        try:
            fail_to_go_on(servers[0], "rank 0 cannot load experts of lost ranks")
        finally:
            away.rename(weights)
        go_on(servers[:1])
        assert servers[0].complete_all(PROMPTS) == expected


def test_the_loss_of_rank_0_is_refused_by_name(model, tmp_path):
    with serve_engines(model, tmp_path, 2, *TOLERANT) as servers:
        with requests_on(servers[1:]):
            kill_engine(servers[0])
            await_status(servers[1:], "unhealthy")
        fail_to_go_on(servers[1], "the engine of rank 0 was lost")


@pytest.mark.parametrize("arguments, said", [
    (TOLERANT[1:], "without expert parallelism"), ((*TOLERANT, "-tp", "2"), "with tensor parallel ranks"),
], ids=["slices", "tensor parallel"])  # fmt: skip
def test_what_is_not_there_is_refused_by_name(model, tmp_path, arguments, said):
    server = start(model, tmp_path / "log", "-dp", "2", "--data-parallel-rank", "0", *arguments)
    try:
        server.process.wait(900)
        assert f"ferry.vllm: fault tolerance {said}" in server.text()
    finally:
        end(server)
