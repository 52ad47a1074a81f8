"""Runs the Python blocks of pages: whole programs as programs, the others of a page in order as one, on two ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ferry  # noqa: E402
from ports import free_port  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def blocks(page):
    """(line, source) of each fenced block; compiled with blank lines before it, errors name the line of the page."""
    text = (ROOT / "docs" / page).read_text()
    for match in re.finditer(r"^```python\n(.*?)^```", text, flags=re.S | re.M):
        yield text.count("\n", 0, match.start(1)), match[1]


BLOCKS = list(blocks("python.md"))
PROGRAMS = [block for block in BLOCKS if "__main__" in block[1]]
LAUNCHED = [block for block in BLOCKS if "ferry.init()" in block[1]]
FRAGMENTS = [block for block in BLOCKS if block not in PROGRAMS + LAUNCHED]


def test_every_block_is_of_a_kind():
    assert (len(PROGRAMS), len(LAUNCHED)) == (1, 1) and len(FRAGMENTS) >= 9


OTHERS = [(page, list(blocks(page))) for page in ("placement.md", "attention_and_experts.md")]


@pytest.mark.parametrize("page, fragments", [("python.md", FRAGMENTS), *OTHERS])
def test_fragments(page, fragments, monkeypatch):
    assert fragments
    monkeypatch.setenv("FERRY_SECRET", "of the groups that a page makes")
    address = f"tcp://127.0.0.1:{free_port()}"

    def body(group):
        names = {"group": group, "address": address}
        for line, source in fragments:
            exec(compile("\n" * line + source, f"docs/{page}", "exec"), names)

    ferry.run_threads(2, body)


def start(source, folder, **environment):
    path = folder / "program.py"
    path.write_text(source)
    return subprocess.Popen([sys.executable, str(path)], env={**os.environ, **environment})


def test_programs(tmp_path):
    for _, source in PROGRAMS + list(blocks("deep_ep_programs.md")):
        assert start(source, tmp_path).wait(60) == 0


# The names that the block of torch_npu.md does not define.
NPU = """import torch
num_experts, bias = 16, torch.zeros(16)
logits, x = torch.randn(8, 16), torch.randn(8, 64).bfloat16()
experts = lambda rows, counts: rows
"""


def test_programs_of_a_launcher(tmp_path):
    ((_, npu),) = blocks("torch_npu.md")
    for source in (*(source for _, source in LAUNCHED), NPU + npu):
        job = dict(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=free_port(), TORCHELASTIC_RUN_ID="docs")
        ranks = [start(source, tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), **job) for rank in range(2)]
        assert [rank.wait(60) for rank in ranks] == [0, 0]
