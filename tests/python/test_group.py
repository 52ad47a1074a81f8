"""Groups: threads, processes, torch's process group, callbacks; ranks that raise, die or are interrupted; forks."""

import os
import re
import subprocess
import sys
import threading
import time

import pytest

import ferry
import rank_programs


def test_threads_and_processes_give_results_by_rank():
    assert ferry.run_threads(3, rank_programs.sum_of_ranks, 2) == [[0, 2, 4]] * 3
    assert ferry.spawn(3, rank_programs.sum_of_ranks, 2) == [[0, 2, 4]] * 3


def test_a_rank_without_memory_refuses_its_dispatch_and_the_group_goes_on():
    assert ferry.spawn(2, rank_programs.dispatch_without_memory) == ["PeerRejected", "Capacity"]


def test_the_end_of_a_group_between_nodes_takes_milliseconds():
    took = []
    for _ in range(3):
        began = max(ferry.run_threads(4, rank_programs.play_five_exchanges, topology="host:2,rank:2"))
        took.append(time.monotonic() - began)
    assert min(took) < 0.5, f"from the last combine to the end: {took} s"


def test_an_exception_of_one_rank_ends_the_others_and_is_raised_with_its_traceback():
    with pytest.raises(KeyError, match="will not"):
        ferry.run_threads(3, rank_programs.raise_on_one)
    with pytest.raises((KeyError, ferry.PeerLost)) as caught:
        ferry.spawn(3, rank_programs.raise_on_one)
    if caught.type is KeyError:
        assert "raise_on_one" in str(caught.value.__cause__)


@pytest.mark.parametrize("start", [ferry.run_threads, ferry.spawn])
def test_the_cause_is_raised_and_not_what_follows_from_it(start):
    for _ in range(3):  # the rank that notices first may differ
        with pytest.raises(ferry.InvalidArgument, match="99"):
            start(3, rank_programs.refuse_a_call_on_the_last_rank)


def test_spawn_without_a_guard_says_so(tmp_path):
    program = tmp_path / "no_guard.py"
    program.write_text("import ferry\n\n\ndef body(group):\n    return group.rank\n\n\nferry.spawn(2, body)\n")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "InvalidArgument: the main module calls ferry.spawn when it is imported" in done.stderr
    assert done.stderr.count("Traceback") == 1  # the parent's, and none of a rank


@pytest.mark.parametrize("start", [ferry.run_threads, ferry.spawn])
def test_a_rank_that_exits_is_an_error(start):
    with pytest.raises(ferry.Error, match=r"rank 1 called sys.exit\(0\)"):
        start(2, rank_programs.exit_on_one)


def test_the_cause_wins_over_what_follows_from_it():
    with pytest.raises(AssertionError, match="xxx"):
        ferry.spawn(3, rank_programs.fail_at_length)


def test_ranks_may_finish_after_their_results_are_home(tmp_path):
    assert ferry.spawn(2, rank_programs.write_late, str(tmp_path)) == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_end_with_a_parent_that_is_killed(method, tmp_path):
    program = ("import os, sys, time; from pathlib import Path; import ferry, rank_programs\n"
               "if __name__ == '__main__': ferry.spawn(2, rank_programs.write_pid_and_stay, sys.argv[1],"
               f" method='{method}')")
    script = tmp_path / "program.py"
    script.write_text(program)
    folder = tmp_path / "pids"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(rank_programs.__file__)}
    parent = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment)
    try:
        wait_until(lambda: len(list(folder.iterdir())) == 2 or parent.poll() is not None)
        pids = [int(file.name) for file in folder.iterdir()]
        assert len(pids) == 2
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(is_running, pids)), ending=pids)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, ending=()):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    held = condition()
    for pid in filter(is_running, ending):
        os.kill(pid, 9)
    assert held


def test_all_gather_of_any_length_and_unequal_lengths():
    def body(group):
        for length in (0, 1, 1016, 1017, 5000):
            mine = bytes([65 + group.rank]) * length
            assert group.all_gather(mine) == [b"A" * length, b"B" * length, b"C" * length]
        with pytest.raises(ferry.Mismatch, match="rank 0 gives 3 bytes, rank 1 gives 100000"):
            group.all_gather(b"x" * (100000 if group.rank == 1 else 3))
        return group.all_gather(b"y")

    assert ferry.run_threads(3, body, deadline=20.0) == [[b"y"] * 3] * 3


def test_a_group_may_be_destroyed_while_it_waits():
    def body(group):
        if group.rank == 1:
            done.wait(20)
            return
        threading.Timer(0.2, group.destroy).start()
        with pytest.raises(ferry.Error):
            group.all_gather(b"x")
        done.set()

    done = threading.Event()
    ferry.run_threads(2, body, deadline=3.0)


def test_groups_leave_no_descriptors_and_no_threads_behind():
    def count():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    ferry.run_threads(2, rank_programs.exchange_once)
    before = count()
    for _ in range(20):
        ferry.run_threads(2, rank_programs.exchange_once)
    assert count() == before


def test_a_rank_that_dies_is_named():
    begin = time.monotonic()
    with pytest.raises(ferry.PeerLost, match="rank 1") as caught:
        ferry.spawn(3, rank_programs.die_on_one)
    assert not caught.value.group_usable and time.monotonic() - begin < 30


def test_ctrl_c_ends_a_wait_and_names_its_rank():
    took, blamed = ferry.spawn(2, rank_programs.wait_for_a_late_rank, 2.0)
    assert 0.2 < took < 1.9 and blamed == 0


def test_ctrl_c_in_run_threads_ends_all_ranks():
    program = (
        "import os, signal, threading, time, ferry\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def body(group):\n"
        "    if group.rank == 0:\n"
        "        time.sleep(0.3); os.kill(os.getpid(), signal.SIGINT); time.sleep(0.3)\n"
        "    else:\n"
        "        group.barrier()\n"
        "try:\n"
        "    ferry.run_threads(3, body)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', threading.active_count())\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["interrupted", "1"], done.stderr


def test_a_forked_child_is_told_and_does_no_harm():
    for text, mean in ferry.spawn(2, rank_programs.fork_after_init):
        assert text.count("was forked after") == 3, text
        assert mean in (0.0, 1.0)


def test_a_deadline_names_who_is_missing():
    def body(group):
        if group.rank == 1:
            done.wait(30)
            return None
        with pytest.raises(ferry.Timeout, match="rank 1.*deadline 0.3 s") as caught:
            group.barrier()
        done.set()
        assert caught.value.culprit == 1 and not group.usable
        with pytest.raises(ferry.Broken):
            group.barrier()

    done = threading.Event()
    ferry.run_threads(2, body, deadline=0.3)


def test_init_takes_an_all_gather_an_address_and_a_process_group():
    parts, barrier = {}, threading.Barrier(2)

    def rank(number):
        def gather(mine):
            parts[number] = mine
            barrier.wait()
            everybody = [parts[0], parts[1]]
            barrier.wait()
            return everybody

        with ferry.init(all_gather=gather, rank=number, size=2) as group:
            assert group.topology == f"host:1,rank:{group.size}"
            answers[number] = (group.size, group.origin[0], rank_programs.exchange_once(group))

    answers = {}
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {0: (2, "callback", 0.0), 1: (2, "callback", 1.0)}
    with ferry.init(address=f"test-{os.getpid()}", rank=0, size=1) as group:
        assert (group.rank, group.size, group.origin[0]) == (0, 1, "address")


GLOO = """
import sys, torch.distributed as dist, ferry
sys.path.insert(0, sys.argv[3])
import rank_programs
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=int(sys.argv[1]), world_size=2)
with ferry.init(process_group=dist.group.WORLD) as group:
    print(group.rank, group.size, rank_programs.exchange_once(group))
dist.destroy_process_group()
"""


def test_a_torch_process_group(tmp_path):
    pytest.importorskip("torch")
    here = os.path.dirname(__file__)
    ranks = [subprocess.Popen([sys.executable, "-c", GLOO, str(rank), str(tmp_path / "store"), here],
                              stdout=subprocess.PIPE, text=True) for rank in range(2)]
    assert [rank.communicate(timeout=120)[0].split() for rank in ranks] == [["0", "2", "0.0"], ["1", "2", "1.0"]]


# Rank 0 makes a group. Rank 1 is a stranger in the process group: it sends bytes that make a folder where they are
# unpickled, or bytes of the length of ferry's two records.
STRANGER = """
import datetime, os, sys, torch, torch.distributed as dist
rank, store, mark, sends = int(sys.argv[1]), *sys.argv[2:]
class Command:
    def __reduce__(self):
        return os.mkdir, (f"{mark}-{os.getpid()}",)
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=5))
try:
    if rank == 0:
        import ferry
        ferry.init(process_group=dist.group.WORLD, deadline=3)
    elif sends == "pickle":
        dist.all_gather_object([None, None], Command())
    else:
        for record in (255 * b"A" + bytes(1), 588 * b"A"):
            mine = torch.frombuffer(bytearray(record), dtype=torch.uint8)
            dist.all_gather([torch.empty_like(mine) for _ in range(2)], mine)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("sends, ends", [("pickle", "RuntimeError|System"), ("bytes", "Timeout")])
def test_what_comes_by_a_process_group_runs_no_code_and_is_no_crash(tmp_path, sends, ends):
    pytest.importorskip("torch")
    mark = tmp_path / "ran"
    ranks = [subprocess.Popen([sys.executable, "-c", STRANGER, str(rank), str(tmp_path / "store"), str(mark), sends],
                              stdout=subprocess.PIPE, text=True) for rank in range(2)]
    said = ranks[0].communicate(timeout=120)[0].strip()
    ranks[1].communicate(timeout=120)
    assert re.fullmatch(ends, said)
    assert not os.path.exists(f"{mark}-{ranks[0].pid}")


def test_ferry_launch_and_its_environment():
    program = "import ferry; g = ferry.init(); print(g.rank, g.size, g.origin[0])"
    done = subprocess.run([sys.executable, "-m", "ferry", "launch", "-n", "2", "--", sys.executable, "-c", program],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["[0] 0 2 torchrun", "[1] 1 2 torchrun"]


@pytest.mark.parametrize("arguments, message", [
    ({"rank": 0}, "need an address"),
    ({"address": "a"}, "rank is None and size is None"),
    ({"address": "a", "all_gather": list, "rank": 0, "size": 1}, "one of"),
    ({"address": "a", "rank": 2, "size": 2}, "rank 2 of 2"),
    ({"address": "a", "rank": 0, "size": 1, "deadline": 0.0}, "deadline is 0"),
    ({"address": "a", "rank": 0, "size": 1, "deadline": float("nan")}, "deadline is nan"),
])
def test_what_init_refuses(arguments, message):
    with pytest.raises(ferry.InvalidArgument, match=message):
        ferry.init(**arguments)


def test_no_launcher_is_said(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "FERRY_ADDR", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ferry.Error, match="FERRY_ADDR"):
        ferry.init()


def test_an_all_gather_that_raises_is_raised():
    def gather(mine):
        raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        ferry.init(all_gather=gather, rank=0, size=2)
