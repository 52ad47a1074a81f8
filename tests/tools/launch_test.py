#!/usr/bin/env python3
"""`ferry launch` with real processes: exit codes, lines, signals, late ranks, and no process that remains, for ranks of
this host and for --hosts. All "hosts" are this one, and a script that runs the command in a shell takes the place of
ssh; tests/hosts has separate hosts. The first argument is the ferry program."""

import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

FERRY = sys.argv.pop(1)
LIMIT_S = 60  # of one launch, on a busy machine
FOLDER = tempfile.TemporaryDirectory(prefix="ferry-launch-")
SSH = Path(FOLDER.name, "ssh")
# As sshd: the remote side lives on when ssh is killed, and sees the end of its input.
SSH.write_text('#!/bin/sh\n[ "$1" = nowhere ] && { echo "ssh: no host $1" >&2; exit 255; }\n'
               'shift\nexec setsid -w sh -c "$*"\n')
SSH.chmod(0o755)
HERE = ["-n", "4"]
HOSTS = ["--ssh", str(SSH), "--hosts", "a:2,user@b:2"]


def launch(*arguments, **options):
    """Runs a launch to its end: (exit code, sorted lines of stdout, text of stderr)."""
    done = subprocess.run([FERRY, "launch", *arguments], capture_output=True, text=True, timeout=LIMIT_S, **options)
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def shell(script):
    return ["--", "sh", "-c", script]


def python(program):
    return ["--", sys.executable, "-c", program]


def tagged(*words, ranks=range(4)):
    """The sorted lines of ranks that each print `words`."""
    return sorted(f"[{rank}] {word}" for rank in ranks for word in words)


def read_lines(process, count):
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def state(pid):
    """As in /proc: R, S, T, ..; None once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def wait_for(condition, within_s=10):
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def still_running(pids, within_s=10):
    """Those of `pids` that have not ended after the wait."""
    wait_for(lambda: all(state(pid) in (None, "Z", "X") for pid in pids), within_s)
    return [pid for pid in pids if state(pid) not in (None, "Z", "X")]


def command_lines():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield folder.name, folder.joinpath("cmdline").read_bytes().split(b"\0")
        except OSError:
            pass


class Case(unittest.TestCase):
    def start(self, *arguments, **options):
        """A launch that goes on; its output is one pipe."""
        process = subprocess.Popen([FERRY, "launch", *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, **options)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def finish(self, process):
        process.terminate()
        return process.communicate(timeout=LIMIT_S)[0]

    def pids(self, process, count):
        return [int(line.split()[-1]) for line in read_lines(process, count)]


class Everywhere:
    """What holds for ranks of this host and of several: PLACE starts 4 ranks."""

    NAMES = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT "
             "TORCHELASTIC_RUN_ID FERRY_SECRET FERRY_ADDR FERRY_RANK FERRY_NEWCOMER OMP_NUM_THREADS MINE PWD").split()

    def variables(self, *arguments, **environment):
        """[{name: value}] of the variables of each rank."""
        text = ";".join("${%s-unset}" % name for name in self.NAMES)
        code, lines, errors = launch(*self.PLACE, *arguments, *shell(f'echo "{text}"'),
                                     env={"PATH": os.environ["PATH"], **environment})
        self.assertEqual(code, 0, errors)
        return [dict(zip(self.NAMES, line.split(" ", 1)[1].split(";"))) for line in lines]

    def test_variables_are_those_of_torchrun(self):
        ranks = self.variables()
        self.assertEqual(len(ranks), 4)
        for rank, found in enumerate(ranks):
            self.assertEqual((found["RANK"], found["WORLD_SIZE"]), (str(rank), "4"))
            self.assertEqual((found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]),
                             (str(rank % self.LOCAL), str(self.LOCAL)))
            self.assertEqual((found["GROUP_RANK"], found["GROUP_WORLD_SIZE"]),
                             (str(rank // self.LOCAL), str(4 // self.LOCAL)))
            self.assertEqual((found["FERRY_RANK"], found["OMP_NUM_THREADS"]), ("unset", "unset"))
        for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "FERRY_SECRET", "FERRY_ADDR"):
            self.assertEqual(len({found[name] for found in ranks}), 1)
        self.assertGreaterEqual(len(ranks[0]["FERRY_SECRET"]), 32)

    def test_variables_of_the_caller_survive_but_what_outranks_torchrun(self):
        value = "a 'b' \"c\" $d"
        found = self.variables(OMP_NUM_THREADS="5", FERRY_SECRET="mine", FERRY_ADDR="x", FERRY_RANK="8", RANK="9",
                               FERRY_NEWCOMER="1", MINE=value)[3]
        self.assertEqual((found["OMP_NUM_THREADS"], found["FERRY_SECRET"]), ("5", "mine"))
        self.assertEqual((found["FERRY_RANK"], found["RANK"], found["FERRY_NEWCOMER"]), ("unset", "3", "unset"))
        self.assertNotEqual(found["FERRY_ADDR"], "x")
        self.assertEqual((found["MINE"], found["PWD"]), (value, os.getcwd()))
        _, lines, _ = launch(*self.PLACE, *shell('printf %s "$MINE" | od -An -tx1'),
                             env={**os.environ, "MINE": "\udcff\n"})
        self.assertEqual(lines[3], "[3]  ff 0a")

    def test_lines_have_their_rank_and_stay_whole(self):
        code, lines, errors = launch(*self.PLACE, *shell('seq 1 20000; echo err >&2; printf "no end"'))
        self.assertEqual(code, 0)
        self.assertEqual(lines, tagged(*range(1, 20001), "no end"))
        self.assertEqual(sorted(errors.splitlines()), tagged("err"))

    def test_lines_without_tags_are_as_ranks_wrote_them(self):
        _, lines, errors = launch(*self.PLACE, "--no-tag", *shell('echo "[x] out"; echo err >&2'))
        self.assertEqual((lines, errors.splitlines()), (["[x] out"] * 4, ["err"] * 4))

    def test_code_is_zero_when_all_ranks_end_well(self):
        self.assertEqual(launch(*self.PLACE, "--", "true"), (0, [], ""))

    def test_code_is_the_worst_and_the_first_is_named(self):
        code, _, errors = launch(*self.PLACE, "--grace", "20",
                                 *shell("[ $RANK = 3 ] && exit 3; sleep 0.5; [ $RANK = 1 ] && kill -ABRT $$; exit 2"))
        self.assertEqual(code, 128 + signal.SIGABRT)
        self.assertRegex(errors, r"rank 3 \(pid \d+\) exited with code 3; the others have 20 s to end")
        self.assertIn("of 4 ranks 4 failed and 0 were stopped; the first failure: ", errors)

    def test_code_of_a_program_that_cannot_run(self):
        code, _, errors = launch(*self.PLACE, "--", "no-such-program")
        self.assertEqual(code, 127)
        self.assertIn("of 4: cannot run 'no-such-program': No such file", errors)
        self.assertEqual(launch(*self.PLACE, "--", "/")[0], 126)

    def test_stragglers_get_grace_then_sigterm(self):
        begin = time.monotonic()
        code, lines, errors = launch(*self.PLACE, "--grace", "1", *shell(
            '[ $RANK = 0 ] && exit 9; trap "echo told; exit 0" TERM; while :; do sleep 0.05; done'))
        self.assertGreater(time.monotonic() - begin, 1)
        self.assertEqual((code, lines), (9, tagged("told", ranks=(1, 2, 3))))
        self.assertIn(f"{self.STRAGGLERS} still run; stopping them", errors)
        self.assertIn("1 failed and 3 were stopped", errors)

    def test_stragglers_that_ignore_sigterm_are_killed(self):
        begin = time.monotonic()
        code, _, errors = launch(*self.PLACE, "--grace", "0", *python(
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.environ['RANK'] == '0' and (time.sleep(2), sys.exit(4))\n"
            "time.sleep(1000)"))
        self.assertLess(time.monotonic() - begin, 2 + 3 + 5)
        self.assertEqual(code, 4)
        self.assertRegex(errors, "ranks [12]-3 ignore SIGTERM")

    def test_timeout(self):
        code, _, errors = launch(*self.PLACE, "--timeout", "0.5", "--", "sleep", "1000")
        self.assertEqual(code, 124)
        self.assertIn(f"--timeout 0.5 s is over; stopping {self.ALL}", errors)

    def test_signals_reach_all_ranks_and_their_children(self):
        for number in self.SIGNALS:
            process = self.start(*self.PLACE, *python("import os, signal\n"
                                                      "os.fork()\n"
                                                      "def tell(*_): os.write(1, b'told\\n'), os._exit(0)\n"
                                                      f"signal.signal({int(number)}, tell)\n"
                                                      "os.write(1, b'up\\n')\n"
                                                      "while True: signal.pause()"))
            self.assertEqual(sorted(read_lines(process, 8)), tagged("up", "up"))
            process.send_signal(number)
            rest = process.communicate(timeout=LIMIT_S)[0]
            self.assertEqual(sorted(rest.splitlines()), tagged("told", "told"), number)
            self.assertEqual(process.returncode, 0)

    def test_second_interrupt_kills(self):
        process = self.start(*self.PLACE, *shell('trap "echo no" INT; echo up; while :; do sleep 0.05; done'))
        read_lines(process, 4)
        process.send_signal(signal.SIGINT)
        self.assertEqual(sorted(read_lines(process, 4)), tagged("no"))
        process.send_signal(signal.SIGINT)
        self.assertIn("interrupted twice", process.communicate(timeout=LIMIT_S)[0])
        self.assertEqual(process.returncode, 128 + signal.SIGINT)

    def test_control_z_stops_ranks_and_continue_wakes_them(self):
        # Each rank is one process: a shell that vforks waits in state D if its child is stopped before its exec.
        process = self.start(*self.PLACE, *shell("echo $$; exec sleep 1000"))
        ranks = self.pids(process, 4)
        process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        self.assertTrue(wait_for(lambda: all(state(rank) == "T" for rank in ranks)))
        process.send_signal(signal.SIGCONT)
        self.assertTrue(wait_for(lambda: all(state(rank) in "SR" for rank in ranks)))
        self.finish(process)

    def test_what_a_rank_left_behind_is_killed(self):
        process = self.start(*self.PLACE, *shell("sleep 1000 & echo $!; setsid sleep 1001 & echo $!"))
        left = self.pids(process, 8)
        process.communicate(timeout=LIMIT_S)
        self.assertEqual((process.returncode, still_running(left, 0)), (0, []))

    def test_killed_launcher_leaves_no_rank(self):
        process = self.start(*self.PLACE, *shell("echo $$; exec sleep 1000"))
        ranks = self.pids(process, 4)
        process.kill()
        self.assertEqual(still_running(ranks), [])
        process.communicate(timeout=LIMIT_S)


class Here(Everywhere, Case):
    PLACE, LOCAL, ALL, STRAGGLERS = HERE, 4, "ranks 0-3", "ranks 1-3"
    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

    def test_ranks_meet_at_this_host_and_ids_differ_between_launches(self):
        first, second = (self.variables("--name", "job")[0] for _ in range(2))
        self.assertEqual((first["MASTER_ADDR"], first["FERRY_ADDR"]), ("127.0.0.1", "unset"))
        self.assertTrue(first["TORCHELASTIC_RUN_ID"].startswith("job-"))
        for name in ("TORCHELASTIC_RUN_ID", "FERRY_SECRET"):
            self.assertNotEqual(first[name], second[name])

    def test_port_is_free_for_rank_0(self):
        code, _, errors = launch("-n", "1", *python(
            "import os, socket; s = socket.socket(); "
            "s.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))); s.listen()"))
        self.assertEqual(code, 0, errors)

    def test_takes_long_lines(self):
        self.assertEqual(launch("-n", "2", *python("print('x' * 3000000)"))[1], tagged("x" * 3000000, ranks=(0, 1)))

    def test_ends_when_nobody_reads(self):
        process = self.start("-n", "1", "--", "yes")
        self.assertEqual(read_lines(process, 1), ["[0] y"])
        process.stdout.close()
        self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGPIPE)

    def test_a_slow_reader_makes_ranks_wait_and_the_launcher_still_listens(self):
        process = self.start("-n", "1", *shell("echo $$; exec yes"))
        rank = int(process.stdout.readline().split()[-1])
        time.sleep(0.5)  # all buffers are full
        process.send_signal(signal.SIGTERM)
        self.assertEqual(still_running([rank]), [])
        time.sleep(4.5)  # the rounds that processes left behind would get
        rest = process.communicate(timeout=LIMIT_S)[0]
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertLess(len(rest), 16 << 20)
        self.assertFalse("cannot be killed" in rest, "all processes had ended")

    def test_input_goes_to_rank_0_only(self):
        self.assertEqual(launch(*HERE, "--", "cat", input="word\n")[1], ["[0] word"])

    def test_input_comes_from_a_terminal(self):
        controller, terminal = pty.openpty()
        process = self.start("-n", "2", *shell("read word; echo got $word"), stdin=terminal, start_new_session=True)
        os.write(controller, b"hello\n")
        self.assertEqual(sorted(read_lines(process, 2)), ["[0] got hello", "[1] got"])
        process.communicate(timeout=LIMIT_S)
        os.close(controller)
        os.close(terminal)

    def test_code_of_a_wrong_command_line(self):
        for arguments, word in ((["-n", "0"], "-n 0"), (["-n", "1000000"], "4096"),
                                (["-n", "99999999999999999999999"], "-n"), (["-n", "x"], "--ranks"),
                                (["-n", "2", "--timeout", "-1"], "--timeout"),
                                (["-n", "2", "--name", "a/b"], "--name"), ([], "--ranks")):
            code, _, errors = launch(*arguments, "--", "true")
            self.assertEqual(code, 2, arguments)
            self.assertIn(word, errors)
        code, _, errors = launch("-n", "2")
        self.assertEqual(code, 2)
        self.assertIn("no program", errors)

    def test_passes_arguments_as_they_are(self):
        words = ["--tag", "-n", "[1,2]", "", "a b", "--", "launch", "-h"]
        lines = launch("-n", "1", *shell('for a; do echo "<$a>"; done'), "sh", *words)[1]
        self.assertEqual(lines, sorted(f"[0] <{word}>" for word in words))

    def test_stopped_straggler_goes_too(self):
        self.assertEqual(launch("-n", "2", "--grace", "0.3", *shell("[ $RANK = 0 ] && exit 5; kill -STOP $$"))[0], 5)

    def test_a_caller_that_ignores_sigchld_changes_nothing(self):
        code, _, _ = launch("-n", "2", *shell("exit $RANK"),
                            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(code, 1)

    def test_no_zombies_while_ranks_run(self):
        process = self.start("-n", "3", *shell("echo $$; [ $RANK != 2 ] || sleep 1000"))
        ranks = self.pids(process, 3)
        self.assertTrue(wait_for(lambda: [state(rank) is None for rank in ranks].count(True) == 2))
        self.finish(process)


# join() opens what looks like the memory of a group of ferry.
MEMBER = """
import os, signal, subprocess, sys, time
from pathlib import Path
rank, newcomer = int(os.environ["RANK"]), os.environ.get("FERRY_NEWCOMER")
def await_files(*names):
    while not all(Path(name).exists() for name in names): time.sleep(0.01)
def join():
    os.memfd_create("ferry")
    Path(f"joined-{rank}-{newcomer}").touch()
"""


class Restart(Case):
    """Ranks that are started again. What they have open stands for the memory of a group of ferry."""

    PLACE, SAID = ["-n", "3"], "ferry launch"

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ferry-restart-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_ranks(self, program, *arguments):
        return launch(*self.PLACE, *arguments, *python(MEMBER + program), cwd=self.folder)

    def test_a_rank_that_failed_is_a_newcomer_and_its_end_does_not_count(self):
        code, lines, errors = self.run_ranks("""
join()
if rank == 1 and not newcomer:
    await_files("joined-0-None")
    print("no end", end="", flush=True)
    child = subprocess.Popen(["sleep", "1000"])
    Path("child").write_text(str(child.pid))
    os.kill(os.getpid(), 9)
await_files("joined-1-1")
print(rank, newcomer, os.environ["TORCHELASTIC_RESTART_COUNT"])
""", "--restart", "2")
        self.assertEqual((code, lines), (0, ["[0] 0 None 0", "[1] 1 1 0", "[1] no end", "[2] 2 None 0"]))
        self.assertRegex(errors, rf"^{self.SAID}: rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\); started again "
                                 r"as pid \d+, restart 1 of 2\n$")
        self.assertEqual(still_running([int(Path(self.folder, "child").read_text())]), [])

    def test_restarts_are_counted_for_all_ranks_together(self):
        code, _, errors = self.run_ranks("""
join()
await_files("joined-0-None")
if rank: sys.exit(rank)
time.sleep(1000)
""", "--restart", "3", "--grace", "0.1")
        self.assertIn(code, (1, 2))
        self.assertEqual(errors.count("started again"), 3)
        self.assertRegex(errors, r"rank [12] \(pid \d+\) exited with code [12], after 3 of 3 restarts; the others have")

    def test_a_rank_is_not_started_again_without_a_group(self):
        code, _, errors = self.run_ranks("rank and time.sleep(1000) or sys.exit(3)", "--restart", "9", "--grace", "0.1")
        self.assertEqual(code, 3)
        self.assertIn("exited with code 3, and no rank that runs is in a group, where it could take its place", errors)

    def test_all_ranks_that_are_killed_are_an_end(self):
        process = self.start(*self.PLACE, "--restart", "100", "--grace", "0.1", *python(MEMBER + """
newcomer or join()
print(os.getpid(), flush=True)
time.sleep(1000)
"""), cwd=self.folder)
        ranks = self.pids(process, 3)
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        text = process.communicate(timeout=LIMIT_S)[0]
        self.assertEqual(process.returncode, 128 + signal.SIGKILL)
        self.assertIn("(SIGKILL), and no rank that runs is in a group", text)

    def test_a_signal_that_asks_to_end_starts_no_rank_again(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start(*self.PLACE, "--restart", "100", *python(MEMBER + """
join()
for number in (signal.SIGINT, signal.SIGTERM):
    rank or signal.signal(number, lambda *_: (time.sleep(1), os._exit(0)))  # in the group until the others have ended
print(os.getpid(), flush=True)
signal.pause()
"""), cwd=self.folder)
            self.pids(process, 3)
            process.send_signal(number)
            text = process.communicate(timeout=LIMIT_S)[0]
            self.assertNotEqual(process.returncode, 0)
            self.assertNotIn("started again", text)

    def test_code_of_a_wrong_command_line(self):
        for arguments, word in ((["-n", "2", "--restart", "-1"], "--restart -1: 0 to 1000000"),
                                (["-n", "2", "--restart", "x"], "--restart"),
                                (["-n", "2", "--spares", "1"], "--spares needs --restart")):
            code, _, errors = launch(*arguments, "--", "true")
            self.assertEqual(code, 2, arguments)
            self.assertIn(word, errors)


class RestartOnHosts(Restart):
    PLACE, SAID = ["--ssh", str(SSH), "--hosts", "a:2,b:1"], "ferry launch on a"

    def test_a_rank_that_was_alone_on_its_host_finds_its_group_at_any_host(self):
        code, lines, errors = self.run_ranks("""
join()
if rank == 2 and not newcomer:
    await_files("joined-0-None", "joined-1-None")
    os.kill(os.getpid(), 9)
await_files("joined-2-1")
print(rank, os.environ["FERRY_ADDR"])
""", "--restart", "1", "--port", "4711")
        self.assertEqual((code, lines), (0, ["[0] 0 tcp://a:4711", "[1] 1 tcp://a:4711", "[2] 2 tcp://a,b:4711"]))
        self.assertRegex(errors, r"^ferry launch on b: rank 2 .*restart 1 of 1\n$")

    def test_each_host_has_spares(self):
        spare = """
import os, sys
if "FERRY_SPARE" in os.environ:
    os.environ.update(line.split("=", 1) for line in sys.stdin.read().splitlines())
    "RANK" in os.environ or sys.exit(0)
    print("a spare", os.environ["FERRY_ADDR"], flush=True)
"""
        program = spare + MEMBER + """
join()
if rank == 2 and not newcomer:
    await_files("joined-0-None", "joined-1-None")
    os.kill(os.getpid(), 9)
await_files("joined-2-1")
"""
        code, lines, _ = launch(*self.PLACE, "--restart", "1", "--spares", "1", "--port", "4711", *python(program),
                                cwd=self.folder)
        self.assertEqual((code, lines), (0, ["[2] a spare tcp://a,b:4711"]))


class FullDevice(Case):
    def run_to_full(self, *words):
        with open("/dev/full", "w") as full:
            return subprocess.run([FERRY, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)

    def test_output_that_is_lost_is_an_error_of_every_command(self):
        for words in (["--version"], ["--help"], ["topology", "host:2,rank:2"], ["plan", "--list"],
                      ["doctor", "--json"]):
            done = self.run_to_full(*words)
            self.assertEqual(done.returncode, 1, words)
            self.assertIn("ferry: cannot write its output", done.stderr)

    def test_output_of_ranks_that_is_lost_is_an_error(self):
        done = self.run_to_full("launch", "-n", "2", "--", "echo", "one line")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ferry launch: cannot write the output of the ranks: No space left on device\n", done.stderr)


class OnHosts(Everywhere, Case):
    PLACE, LOCAL, ALL, STRAGGLERS = HOSTS, 2, "ranks on a, b", "ranks on a, b"
    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def test_ranks_meet_at_the_first_host(self):
        found = self.variables()[2]
        self.assertEqual(found["MASTER_ADDR"], "a")
        self.assertEqual(found["FERRY_ADDR"], f"tcp://a:{int(found['MASTER_PORT']) + 1}")
        self.assertEqual(self.variables("--port", "4711")[2]["FERRY_ADDR"], "tcp://a:4711")
        self.assertEqual(self.variables(FERRY_PORT="4712")[2]["FERRY_ADDR"], "tcp://a:4712")

    def test_directory_is_that_of_the_launcher(self):
        self.assertEqual(launch(*HOSTS, *shell("pwd"), cwd="/")[:2], (0, tagged("/")))

    def test_secret_is_in_no_list_of_processes(self):
        process = self.start(*HOSTS, *shell("echo $FERRY_SECRET; sleep 1000"))
        secret = read_lines(process, 1)[0].split()[1].encode()
        lines = list(command_lines())
        self.assertTrue(any(b"--remote-agent" in word for _, words in lines for word in words))
        self.assertEqual([pid for pid, words in lines if any(secret in word for word in words)], [])
        self.finish(process)

    def test_a_line_of_a_rank_is_no_answer_of_an_agent(self):
        words = "ferry agent failed: me"
        code, lines, errors = launch(*HOSTS, *shell(f"echo {words}; echo {words} >&2"))
        self.assertEqual((code, len(lines)), (0, 4))
        self.assertNotIn("to end", errors)

    def test_ranks_read_no_input(self):
        self.assertEqual(launch(*HOSTS, "--", "cat", input="word\n"), (0, [], ""))

    def test_code_of_a_host_that_cannot_be_reached(self):
        code, _, errors = launch("--ssh", str(SSH), "--hosts", "a:2,nowhere:2", "--grace", "0.2", "--", "sleep", "1000")
        self.assertEqual(code, 255)
        for text in ("ssh: no host nowhere", "the connection to nowhere", "ranks on a still run"):
            self.assertIn(text, errors)

    def test_code_of_a_wrong_command_line(self):
        for arguments, word in ((["--hosts", "a"], "'a' is not NAME:RANKS"), (["--hosts", "a:0"], "a:0"),
                                (["--hosts", "a:1,,b:1"], "''"), (["--hosts", "-x:1"], "-x:1"),
                                (["--hosts", "a:4097"], "4096"), (["--hosts", "a:1", "-n", "1"], "give one"),
                                (["--hosts", "a:1", "--ssh", " "], "--ssh"), ([], "--hosts"),
                                (["--hosts", "a:1", "--port", "70000"], "--port 70000")):
            code, _, errors = launch(*arguments, "--", "true")
            self.assertEqual(code, 2, arguments)
            self.assertIn(word, errors)
        self.assertIn("no-ssh", launch("--hosts", "a:1", "--ssh", "no-ssh", "--", "true")[2])

    def test_an_agent_without_a_task_of_its_version_fails(self):
        for text, told in (("", "the launcher sent no task"), ("0 2\n..", "the launcher is ferry 0, this host has")):
            done = subprocess.run([FERRY, "launch", "--remote-agent"], capture_output=True, text=True, input=text)
            self.assertEqual(done.returncode, 1)
            self.assertIn(told, done.stderr)

    def test_killed_agent_leaves_no_rank_and_stops_the_others(self):
        process = self.start(*HOSTS, "--grace", "0.2", *shell("echo $PPID; echo $$; exec sleep 1000"))
        numbers = self.pids(process, 8)
        agents = sorted({pid for pid in numbers if numbers.count(pid) == 2})
        self.assertEqual(len(agents), 2)
        os.kill(agents[0], signal.SIGKILL)
        text = process.communicate(timeout=LIMIT_S)[0]
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("the connection to", text)
        self.assertEqual(still_running(numbers), [])

    def test_an_agent_that_has_ended_is_not_waited_for(self):
        slow = Path(FOLDER.name, "slow-ssh")  # its connection lasts for a second after the agent's end
        slow.write_text('#!/bin/sh\nshift\nsetsid -w sh -c "$*"\ncode=$?\nsleep 1\nexit $code\n')
        slow.chmod(0o755)
        code, _, errors = launch("--ssh", str(slow), "--hosts", "a:1,b:1", "--restart", "1",
                                 *shell("[ $RANK = 1 ] && exit 0; sleep 0.4; exit 1"))
        self.assertEqual(code, 1)
        self.assertIn("no rank that runs is in a group", errors)

    def test_lost_connection_ends_both_sides(self):
        process = self.start(*HOSTS, "--grace", "0.2", *shell("echo $$; exec sleep 1000"))
        ranks = self.pids(process, 4)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.assertEqual(len(children), 2)
        os.kill(int(children[1]), signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
        self.assertEqual((process.returncode, still_running(ranks)), (128 + signal.SIGKILL, []))


if __name__ == "__main__":
    unittest.main()
