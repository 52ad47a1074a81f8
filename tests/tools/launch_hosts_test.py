#!/usr/bin/env python3
"""`ferry launch --hosts` with real processes; "hosts" are this one, and ssh is a script that gives the line to a
shell. Called by ctest with the ferry program as its first argument. tests/hosts has hosts that are apart."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from launch_test import FERRY, LIMIT_S, read_lines, shell, still_running

FOLDER = tempfile.TemporaryDirectory(prefix="ferry-launch-")
SSH = Path(FOLDER.name, "ssh")
# As sshd: the remote side lives on when ssh is killed, and sees the end of its input.
SSH.write_text('#!/bin/sh\n[ "$1" = nowhere ] && { echo "ssh: no host $1" >&2; exit 255; }\n'
               'shift\nexec setsid -w sh -c "$*"\n')
SSH.chmod(0o755)
HOSTS = ["--ssh", str(SSH), "--hosts", "a:2,user@b:2"]


def launch(*arguments, **options):
    """Runs a launch to its end: (exit code, sorted lines of stdout, text of stderr)."""
    done = subprocess.run([FERRY, "launch", *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, **options)
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def command_lines():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield folder.name, folder.joinpath("cmdline").read_bytes().split(b"\0")
        except OSError:
            pass


class Case(unittest.TestCase):
    def start(self, *arguments, **options):
        """A launch that goes on; its output is one pipe."""
        process = subprocess.Popen([FERRY, "launch", *HOSTS, *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, **options)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def pids(self, process, count):
        return [int(line.split()[-1]) for line in read_lines(process, count)]


class Environment(Case):
    NAMES = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT "
             "TORCHELASTIC_RUN_ID FERRY_SECRET FERRY_ADDR FERRY_RANK MINE PWD").split()

    def variables(self, *arguments, **environment):
        """Of each rank, by name."""
        text = ";".join("${%s-unset}" % name for name in self.NAMES)
        code, lines, errors = launch(*HOSTS, *arguments, *shell(f'echo "{text}"'),
                                     env={"PATH": os.environ["PATH"], **environment})
        self.assertEqual(code, 0, errors)
        return [dict(zip(self.NAMES, line.split(" ", 1)[1].split(";"))) for line in lines]

    def test_counts_ranks_over_hosts(self):
        ranks = self.variables()
        self.assertEqual(len(ranks), 4)
        for rank, found in enumerate(ranks):
            self.assertEqual((found["RANK"], found["FERRY_RANK"]), (str(rank), "unset"))
            self.assertEqual(found["WORLD_SIZE"], "4")
            self.assertEqual((found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]), (str(rank % 2), "2"))
            self.assertEqual((found["GROUP_RANK"], found["GROUP_WORLD_SIZE"]), (str(rank // 2), "2"))
            self.assertEqual(found["MASTER_ADDR"], "a")
            self.assertEqual(found["FERRY_ADDR"], f"tcp://a:{int(found['MASTER_PORT']) + 1}")
        for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "FERRY_SECRET"):
            self.assertEqual(len({found[name] for found in ranks}), 1)
        self.assertGreaterEqual(len(ranks[0]["FERRY_SECRET"]), 32)

    def test_is_that_of_the_launcher(self):
        value = "a 'b' \"c\"\n$d"
        found = self.variables(MINE=value.replace("\n", " "))[3]
        self.assertEqual((found["MINE"], found["PWD"]), (value.replace("\n", " "), os.getcwd()))
        code, lines, _ = launch(*HOSTS, *shell("pwd"), cwd="/")
        self.assertEqual((code, lines), (0, [f"[{rank}] /" for rank in range(4)]))
        _, lines, _ = launch(*HOSTS, *shell('echo "$MINE"'), env={**os.environ, "MINE": value})
        self.assertIn("[3] $d", lines)
        _, lines, _ = launch(*HOSTS, *shell('printf %s "$MINE" | od -An -tx1'), env={**os.environ, "MINE": "\udcff"})
        self.assertEqual(lines[3], "[3]  ff")

    def test_port_can_be_chosen(self):
        self.assertEqual(self.variables("--port", "4711")[2]["FERRY_ADDR"], "tcp://a:4711")
        self.assertEqual(self.variables(FERRY_PORT="4712")[2]["FERRY_ADDR"], "tcp://a:4712")

    def test_secret_is_in_no_list_of_processes(self):
        process = self.start(*shell("echo $FERRY_SECRET; sleep 1000"), env=None)
        secret = read_lines(process, 1)[0].split()[1].encode()
        lines = list(command_lines())
        self.assertTrue(any(b"--remote-agent" in word for _, words in lines for word in words))
        self.assertEqual([pid for pid, words in lines if any(secret in word for word in words)], [])
        process.terminate()
        process.communicate(timeout=LIMIT_S)


class Output(Case):
    def test_has_the_rank_before_each_line(self):
        code, lines, errors = launch(*HOSTS, *shell('echo out; echo err >&2; printf "no end"'))
        self.assertEqual(code, 0)
        self.assertEqual(lines, sorted(f"[{rank}] {word}" for rank in range(4) for word in ("out", "no end")))
        self.assertEqual(sorted(errors.splitlines()), [f"[{rank}] err" for rank in range(4)])

    def test_without_tags_is_as_ranks_wrote_it(self):
        _, lines, errors = launch(*HOSTS, "--no-tag", *shell('echo "[x] out"; echo err >&2'))
        self.assertEqual((lines, errors.splitlines()), (["[x] out"] * 4, ["err"] * 4))

    def test_keeps_lines_whole(self):
        count = 20000
        _, lines, _ = launch(*HOSTS, *shell(f"seq 1 {count}"))
        self.assertEqual(lines, sorted(f"[{rank}] {i}" for rank in range(4) for i in range(1, count + 1)))

    def test_of_a_rank_is_no_answer_of_an_agent(self):
        words = "ferry agent failed: me"
        code, lines, errors = launch(*HOSTS, *shell(f"echo {words}; echo {words} >&2"))
        self.assertEqual((code, len(lines)), (0, 4))
        self.assertNotIn("to end", errors)

    def test_ranks_read_no_input(self):
        self.assertEqual(launch(*HOSTS, "--", "cat", input="word\n"), (0, [], ""))


class ExitCode(Case):
    def test_is_zero_when_all_ranks_end_well(self):
        self.assertEqual(launch(*HOSTS, "--", "true"), (0, [], ""))

    def test_is_the_worst_and_the_first_is_named(self):
        code, _, errors = launch(*HOSTS, *shell("[ $RANK = 3 ] && exit 3; sleep 0.5; exit $RANK"))
        self.assertEqual(code, 3)
        self.assertIn("on b: rank 3 (pid", errors)
        self.assertIn("exited with code 3; the others have 5 s", errors)
        self.assertIn("of 4 ranks 3 failed and 0 were stopped", errors)

    def test_of_a_program_that_cannot_run(self):
        code, _, errors = launch(*HOSTS, "--", "no-such-program")
        self.assertEqual(code, 127)
        self.assertIn("of 4: cannot run 'no-such-program': No such file", errors)

    def test_of_a_host_that_cannot_be_reached(self):
        code, _, errors = launch("--ssh", str(SSH), "--hosts", "a:2,nowhere:2", "--grace", "0.2", "--", "sleep", "1000")
        self.assertEqual(code, 255)
        self.assertIn("ssh: no host nowhere", errors)
        self.assertIn("the connection to nowhere", errors)
        self.assertIn("ranks on a still run", errors)

    def test_of_a_wrong_command_line(self):
        for arguments, word in ((["--hosts", "a"], "'a' is not NAME:RANKS"), (["--hosts", "a:0"], "a:0"),
                                (["--hosts", "a:1,,b:1"], "''"), (["--hosts", "-x:1"], "-x:1"),
                                (["--hosts", "a:4097"], "4096"), (["--hosts", "a:1", "-n", "1"], "give one"),
                                (["--hosts", "a:1", "--ssh", " "], "--ssh"), ([], "--hosts"),
                                (["--hosts", "a:1", "--port", "70000"], "--port 70000")):
            code, _, errors = launch(*arguments, "--", "true")
            self.assertEqual(code, 2, arguments)
            self.assertIn(word, errors)
        self.assertIn("no-ssh", launch("--hosts", "a:1", "--ssh", "no-ssh", "--", "true")[2])

    def test_of_an_agent_without_launcher(self):
        done = subprocess.run([FERRY, "launch", "--remote-agent"], capture_output=True, text=True, input="")
        self.assertEqual(done.returncode, 1)
        self.assertIn("the launcher sent no task", done.stderr)
        done = subprocess.run([FERRY, "launch", "--remote-agent"], capture_output=True, text=True, input="0 2\n..")
        self.assertIn("the launcher is ferry 0, this host has", done.stderr)


class Ending(Case):
    def test_stragglers_on_all_hosts_get_grace_then_sigterm(self):
        script = ('[ $RANK = 0 ] && exit 9; trap "echo told; exit 0" TERM; while :; do sleep 0.05; done')
        code, lines, errors = launch(*HOSTS, "--grace", "1", *shell(script))
        self.assertEqual((code, lines), (9, ["[1] told", "[2] told", "[3] told"]))
        self.assertIn("ranks on a, b still run", errors)
        self.assertIn("1 failed and 3 were stopped", errors)

    def test_stragglers_that_ignore_sigterm_are_killed(self):
        code, _, errors = launch(*HOSTS, "--grace", "0", "--", sys.executable, "-c",
                                 "import os, signal, sys, time\n"
                                 "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                                 "os.environ['RANK'] == '0' and (time.sleep(2), sys.exit(4))\n"
                                 "time.sleep(1000)")
        self.assertEqual(code, 4)
        self.assertIn("on b: ranks 2-3 ignore SIGTERM", errors)

    def test_timeout(self):
        code, _, errors = launch(*HOSTS, "--timeout", "0.5", "--", "sleep", "1000")
        self.assertEqual(code, 124)
        self.assertIn("--timeout 0.5 s is over; stopping ranks on a, b", errors)

    def test_signals_reach_all_ranks(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            process = self.start(*shell(f'trap "echo told; exit 0" {number:d}; echo up; while :; do sleep 0.05; done'))
            self.assertEqual(sorted(read_lines(process, 4)), [f"[{rank}] up" for rank in range(4)])
            process.send_signal(number)
            lines = process.communicate(timeout=LIMIT_S)[0].splitlines()
            told = sorted(line for line in lines if line.endswith("told"))  # shells tell of sleep's end, too
            self.assertEqual(told, [f"[{rank}] told" for rank in range(4)])
            self.assertEqual(process.returncode, 0)

    def test_second_interrupt_kills(self):
        process = self.start(*shell('trap "echo no" INT; echo up; while :; do sleep 0.05; done'))
        read_lines(process, 4)
        process.send_signal(signal.SIGINT)
        self.assertEqual(sorted(read_lines(process, 4)), [f"[{rank}] no" for rank in range(4)])
        process.send_signal(signal.SIGINT)
        self.assertIn("interrupted twice", process.communicate(timeout=LIMIT_S)[0])
        self.assertEqual(process.returncode, 128 + signal.SIGINT)

    def test_killed_launcher_leaves_no_rank(self):
        process = self.start(*shell("echo $$; exec sleep 1000"))
        ranks = self.pids(process, 4)
        process.kill()
        self.assertEqual(still_running(ranks), [])
        process.communicate(timeout=LIMIT_S)

    def test_killed_agent_leaves_no_rank_and_stops_the_others(self):
        process = self.start("--grace", "0.2", *shell("echo $PPID; echo $$; exec sleep 1000"))
        numbers = self.pids(process, 8)
        agents = sorted({pid for pid in numbers if numbers.count(pid) == 2})
        self.assertEqual(len(agents), 2)
        os.kill(agents[0], signal.SIGKILL)
        text = process.communicate(timeout=LIMIT_S)[0]
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("the connection to", text)
        self.assertEqual(still_running(numbers), [])

    def test_lost_connection_ends_both_sides(self):
        process = self.start("--grace", "0.2", *shell("echo $$; exec sleep 1000"))
        ranks = self.pids(process, 4)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.assertEqual(len(children), 2)
        os.kill(int(children[1]), signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
        self.assertEqual((process.returncode, still_running(ranks)), (128 + signal.SIGKILL, []))

    def test_what_a_rank_left_behind_is_killed(self):
        process = self.start(*shell("setsid sleep 1000 & echo $!"))
        left = self.pids(process, 4)
        process.communicate(timeout=LIMIT_S)
        self.assertEqual((process.returncode, still_running(left, 0)), (0, []))

    def test_control_z_stops_ranks_and_continue_wakes_them(self):
        process = self.start(*shell("echo $$; exec sleep 1000"))
        ranks = self.pids(process, 4)
        process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        self.assertTrue(self.states_become(ranks, "T"))
        process.send_signal(signal.SIGCONT)
        self.assertTrue(self.states_become(ranks, "SR"))
        process.terminate()
        process.communicate(timeout=LIMIT_S)

    def states_become(self, pids, states):
        for _ in range(500):
            found = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in pids]
            if all(state in states for state in found):
                return True
            time.sleep(0.01)
        return False


if __name__ == "__main__":
    unittest.main()
