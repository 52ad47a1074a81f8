"""Ranks that are killed by SIGKILL come back: `ferry launch --restart`, and torchrun, which starts all ranks anew."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 3


def launch(num_ranks, *arguments, **environment):
    command = [sys.executable, "-m", "ferry", "launch", "-n", str(num_ranks), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1", **environment})


def children_of(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_member(pid):
    """Whether the process is in a group: then memory of the group is among its open files."""
    with suppress(OSError):
        return any(os.readlink(file).startswith("/memfd:ferry") for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


def variables_of(pid):
    """The environment with which a process was started."""
    with suppress(OSError):
        return dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line)
    return {}


def waits_for_a_place(pid):
    """Whether a spare sleeps in poll(2), as await_place() does."""
    with suppress(OSError):
        return "FERRY_SPARE" in variables_of(pid) and "poll" in Path(f"/proc/{pid}/wchan").read_text()
    return False


def kill_some(job, num_kills, num_ranks, seed=1):
    """Kills a random rank, several times, each time shortly after all ranks have been in a group."""
    draw = random.Random(seed)
    for _ in range(num_kills):
        while sum(map(is_member, children_of(job))) < num_ranks:
            time.sleep(0.01)
            assert job.poll() is None
        time.sleep(draw.uniform(0, 0.2))
        victim = draw.choice(children_of(job))
        os.kill(victim, signal.SIGKILL)
        while is_member(victim):
            time.sleep(0.01)


def test_ranks_of_the_example_are_killed():
    job = launch(4, "--restart", "1000", "--", sys.executable, str(ROOT / "examples/python/restart.py"), "2000")
    try:
        kill_some(job, KILLS, 4)
        out, err = job.communicate(timeout=100)
    finally:
        job.kill()
    assert job.returncode == 0, out + err
    assert err.count("; started again as pid") == KILLS, err
    lines, view = sorted(out.splitlines()), int(out.split()[-1])
    assert lines == [f"[{rank}] rank {rank}: results of all steps are right; view {view}" for rank in range(4)]
    assert 3 <= view <= 1 + 2 * KILLS  # a kill that ends an admission begins no view


SPARES = """
import os, sys, time
had_rank = "RANK" in os.environ
import ferry
ferry.await_place()
assert "FERRY_SPARE" not in os.environ
place = os.environ["RANK"], os.environ["LOCAL_RANK"]
with ferry.init() as group:
    assert place == (str(group.rank), str(group.rank))
    assert sys.stdin.read() == ""
    print(f"rank {group.rank} in view {group.view[0]}, spare {not had_rank}", flush=True)
    while len(group.view[1]) < 2 or group.view[0] == 1:
        try:
            group.barrier()
        except ferry.PeerLost:
            group.survive()
            group.admit()
"""


def test_a_spare_takes_the_place_of_a_killed_rank():
    job = launch(2, "--restart", "1", "--spares", "2", "--", sys.executable, "-c", SPARES, RANK="7", LOCAL_RANK="7")
    try:
        began = [job.stdout.readline() for _ in range(2)]  # a kill while they join would end the job
        deadline = time.monotonic() + 60
        while sum(map(waits_for_a_place, children_of(job))) < 2:
            time.sleep(0.01)
            assert time.monotonic() < deadline
        victim = next(pid for pid in children_of(job) if variables_of(pid).get("RANK") == "1")
        os.kill(victim, signal.SIGKILL)
        out, err = job.communicate(timeout=100)
    finally:
        job.kill()
    assert job.returncode == 0, out + err
    assert sorted(began) == ["[0] rank 0 in view 1, spare False\n", "[1] rank 1 in view 1, spare False\n"], began
    assert out.splitlines() == ["[1] rank 1 in view 3, spare True"]
    assert f"rank 1 (pid {victim}) was killed by signal 9 (SIGKILL); started again as pid" in err
    assert "left" not in err, err  # spares are not left behind


@pytest.mark.parametrize("arguments, said", [
    (("--spares", "1"), "--spares needs --restart"),
    (("--restart", "1", "--spares", "-1"), "--spares -1: 0 to 4096"),
])  # fmt: skip
def test_spares_that_are_refused(arguments, said):
    job = launch(2, *arguments, "--", "true")
    _, err = job.communicate(timeout=20)
    assert job.returncode == 2 and said in err, err


def test_a_spare_whose_launcher_gives_no_place():
    code = "import ferry\ntry: ferry.init()\nexcept ferry.Closed as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FERRY_SPARE": "1"}, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
    assert done.stdout == "FERRY_SPARE=1, and stdin ended without a place for this spare\n", done.stderr


def test_a_server_answers_all_requests_but_those_of_killed_ranks():
    done = subprocess.run([sys.executable, str(ROOT / "bench/serving_kills.py"), "--seconds", "12", "--every", "2"],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong: 0, skipped: 0; ranks at the end: 4; exit code 0" in done.stdout, done.stdout


UNDER_TORCHRUN = """
import os, signal, sys, time, ferry
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with ferry.init() as group:
    print(f"attempt {attempt}: rank {group.rank} in view {group.view[0]}", flush=True)
    group.barrier()
    if attempt == "0" and group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.barrier()
    except ferry.PeerLost:
        group.survive()
        time.sleep(60)  # torchrun ends this rank too
"""


def test_torchrun_starts_all_ranks_anew(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(UNDER_TORCHRUN)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
                           "--max-restarts", "1", str(tmp_path / "program.py")], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"attempt \d+: rank \d+ in view \d+", done.stdout)  # two ranks may write one line
    assert sorted(said) == [f"attempt {attempt}: rank {rank} in view 1" for attempt in range(2) for rank in range(2)]
