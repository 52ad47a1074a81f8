"""The examples, run as their readers run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
TUTORIAL = EXAMPLES.parent / "tutorial"


def completed(*arguments, **environment):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run(name, *arguments):
    return completed(str(EXAMPLES / name), *arguments).stdout


def test_quickstart():
    expected = [f"rank {rank}: 32 rows received, 16 results returned" for rank in range(4)]
    assert run("quickstart.py").splitlines() == expected


TWO_PARTS = [*(f"rank {rank}: attention, no window, results as in one process" for rank in range(3)),
             *(f"rank {rank}: experts, a window" for rank in (3, 4))]


def test_attention_and_experts():
    assert run("attention_and_experts.py").splitlines() == TWO_PARTS


@pytest.mark.long
@pytest.mark.parametrize("topology", ["host:2,rank:3+2", "host:2,rank:2+3"])  # parts on hosts of their own, or not
def test_attention_and_experts_on_two_hosts_that_one_machine_plays(topology):
    launch = ["-m", "ferry", "launch", "-n", "5", "--", sys.executable]
    lines = completed(*launch, str(EXAMPLES / "attention_and_experts.py"), FERRY_TOPOLOGY=topology).stdout.splitlines()
    assert sorted(re.sub(r"^\[\d\] ", "", line) for line in lines) == TWO_PARTS


TUTORIAL_LINES = {
    "step1_threads.py": r"rank {rank} received 32 rows and combined 16 tokens",
    "step2_processes.py": r"rank {rank} computed experts {first} and {second} on \[16, 16\] rows",
    "step3_halves.py": r"rank {rank} combined 16 tokens in 2 batches",
    "step4_layer.py": r"rank {rank}: loss [\d.]+, after ten steps [\d.]+",
}


def matches(lines, pattern):
    return [bool(re.fullmatch(pattern.format(rank=rank, first=2 * rank, second=2 * rank + 1), line))
            for rank, line in enumerate(lines)]


@pytest.mark.parametrize("program", TUTORIAL_LINES)
def test_steps_of_the_tutorial(program):
    lines = completed(str(TUTORIAL / program)).stdout.splitlines()
    assert matches(lines, TUTORIAL_LINES[program]) == [True] * 4, lines


@pytest.mark.long
def test_the_last_step_of_the_tutorial_on_two_hosts_that_one_machine_plays():
    launch = [sys.executable, "-m", "ferry", "launch", "-n", "4", "--", sys.executable]
    done = subprocess.run([*launch, str(TUTORIAL / "step5_hosts.py")], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "FERRY_TOPOLOGY": "host:2,rank:2"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(re.sub(r"^\[\d\] ", "", line) for line in done.stdout.splitlines())
    assert matches(lines, TUTORIAL_LINES["step4_layer.py"]) == [True] * 4, lines


def test_programs_of_the_tutorial_are_those_that_are_tested():
    assert {path.name for path in TUTORIAL.iterdir() if path.suffix == ".py"} == {*TUTORIAL_LINES, "step5_hosts.py"}


def test_moe_layer():
    expected = [f"rank {rank}: 100 tokens as in the dense layer" for rank in range(4)]
    assert run("moe_layer.py").splitlines() == expected


@pytest.mark.long
def test_train_moe_has_the_same_losses_on_one_rank_and_on_four():
    done = completed("-X", "importtime", str(EXAMPLES / "train_moe.py"), "24")
    assert "ferry.torch" in done.stderr
    assert "torch._dynamo" not in done.stderr, "torch's compiler takes seconds to load"
    output = done.stdout
    assert "losses that differ: 0" in output
    rows = re.findall(r"^ *\d+ +([\d.]+) +([\d.]+) +0\.0e\+00$", output, flags=re.M)
    assert len(rows) >= 8 and all(one == four for one, four in rows), output
    assert float(rows[-1][1]) < float(rows[0][1]) - 0.5, output


def test_transformers_train():
    pytest.importorskip("transformers", minversion="5.23")
    pytest.importorskip("accelerate")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    program = str(EXAMPLES / "transformers_train.py")
    done = subprocess.run([*launch, program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d: loss ([\d.]+)$", done.stdout, flags=re.M)]
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.1, done.stdout


def losses(ranks, *arguments):
    """{step: (loss, norm)} of train_parallel.py."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    output = completed(*launch, str(EXAMPLES / "train_parallel.py"), *arguments).stdout
    found = re.findall(r"^step (\d+): loss ([\d.]+), norm ([\d.]+)$", output, flags=re.M)
    return {int(step): (float(loss), float(norm)) for step, loss, norm in found}


@pytest.mark.long
def test_train_parallel_goes_on_with_other_ranks_and_wrappers(tmp_path):
    first = losses(2, "ddp", "2", str(tmp_path / "one"))
    (tmp_path / "two").mkdir()
    for file in (tmp_path / "one").iterdir():
        (tmp_path / "two" / file.name).write_bytes(file.read_bytes())
    same, other = losses(2, "ddp", "2", str(tmp_path / "one")), losses(4, "fsdp", "2", str(tmp_path / "two"))
    assert list(first) == [*range(8)] and list(same) == list(other) == [*range(8, 16)]
    assert same[15][0] < first[0][0] - 0.1
    for step, (loss, norm) in same.items():
        # Sums of another order differ from the fourth digit on; lost weights or moments of Adam, by tenths.
        assert abs(other[step][0] - loss) < 5e-3 and abs(other[step][1] - norm) < 2e-2, (step, same, other)
