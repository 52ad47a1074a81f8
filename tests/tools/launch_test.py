#!/usr/bin/env python3
"""`ferry launch` with real processes: codes, lines, signals, stragglers, and nothing left behind.
Called by ctest with the ferry program as its first argument."""

import os
import pty
import signal
import subprocess
import sys
import time
import unittest

FERRY = sys.argv.pop(1)
LIMIT_S = 60  # of one launch, on a busy machine


def launch(*arguments, **options):
    """Runs a launch to its end: (exit code, lines of stdout, text of stderr)."""
    done = subprocess.run([FERRY, "launch", *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, **options)
    return done.returncode, done.stdout.splitlines(), done.stderr


def shell(script):
    return ["--", "sh", "-c", script]


def read_lines(process, count):
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def still_running(pids, within_s=10):
    """Those of `pids` that have not ended after the wait."""
    end = time.monotonic() + within_s
    while any(map(runs, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return [pid for pid in pids if runs(pid)]


class Case(unittest.TestCase):
    def start(self, *arguments, **options):
        """A launch that goes on; its output is one pipe."""
        process = subprocess.Popen([FERRY, "launch", *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, **options)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process


class Environment(Case):
    NAMES = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT "
             "TORCHELASTIC_RUN_ID FERRY_SECRET OMP_NUM_THREADS FERRY_ADDR").split()

    def variables(self, *arguments, **environment):
        """Of each rank, by name."""
        text = ";".join("${%s-unset}" % name for name in self.NAMES)
        code, lines, _ = launch(*arguments, *shell(f'echo "{text}"'),
                                env={"PATH": os.environ["PATH"], **environment})
        self.assertEqual(code, 0)
        rows = [line.split(" ", 1)[1].split(";") for line in sorted(lines)]
        return [dict(zip(self.NAMES, row)) for row in rows]

    def test_is_that_of_torchrun(self):
        ranks = self.variables("-n", "3")
        for rank, found in enumerate(ranks):
            self.assertEqual((found["RANK"], found["LOCAL_RANK"]), (str(rank), str(rank)))
            self.assertEqual((found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]), ("3", "3"))
            self.assertEqual((found["GROUP_RANK"], found["MASTER_ADDR"]), ("0", "127.0.0.1"))
            self.assertEqual(found["OMP_NUM_THREADS"], "unset")
        for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "FERRY_SECRET"):
            self.assertEqual(len({found[name] for found in ranks}), 1)

    def test_differs_between_launches(self):
        first, second = (self.variables("-n", "1", "--name", "job")[0] for _ in range(2))
        self.assertTrue(first["TORCHELASTIC_RUN_ID"].startswith("job-"))
        for name in ("TORCHELASTIC_RUN_ID", "FERRY_SECRET"):
            self.assertNotEqual(first[name], second[name])

    def test_of_the_caller_survives_but_what_outranks_torchrun(self):
        found = self.variables("-n", "1", OMP_NUM_THREADS="5", FERRY_SECRET="mine", FERRY_ADDR="x",
                               RANK="9")[0]
        self.assertEqual((found["OMP_NUM_THREADS"], found["FERRY_SECRET"]), ("5", "mine"))
        self.assertEqual((found["FERRY_ADDR"], found["RANK"]), ("unset", "0"))

    def test_port_is_free_for_rank_0(self):
        program = ("import os, socket; s = socket.socket(); "
                   "s.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))); "
                   "s.listen()")
        code, _, errors = launch("-n", "1", "--", sys.executable, "-c", program)
        self.assertEqual(code, 0, errors)


class Output(Case):
    def test_has_the_rank_before_each_line(self):
        code, lines, errors = launch("-n", "2", *shell('echo out; echo err >&2; printf "no end"'))
        self.assertEqual(code, 0)
        self.assertEqual(sorted(lines), ["[0] no end", "[0] out", "[1] no end", "[1] out"])
        self.assertEqual(sorted(errors.splitlines()), ["[0] err", "[1] err"])

    def test_keeps_lines_whole(self):
        count = 20000
        _, lines, _ = launch("-n", "4", *shell(f"seq 1 {count}"))
        for rank in range(4):
            mine = [line for line in lines if line.startswith(f"[{rank}] ")]
            self.assertEqual(mine, [f"[{rank}] {i}" for i in range(1, count + 1)])
        self.assertEqual(len(lines), 4 * count)

    def test_takes_long_lines(self):
        _, lines, _ = launch("-n", "2", "--", sys.executable, "-c", "print('x' * 3000000)")
        self.assertEqual(sorted(lines), [f"[{rank}] " + "x" * 3000000 for rank in range(2)])

    def test_without_tags_is_the_launchers_own(self):
        _, lines, _ = launch("-n", "1", "--no-tag", *shell("echo plain; readlink /proc/$$/fd/1"))
        self.assertEqual(lines[0], "plain")

    def test_ends_when_nobody_reads(self):
        process = self.start("-n", "1", "--", "yes")
        self.assertEqual(read_lines(process, 1), ["[0] y"])
        process.stdout.close()
        self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGPIPE)

    def test_of_a_slow_reader_waits_and_the_launcher_still_listens(self):
        process = self.start("-n", "1", *shell("echo $$; exec yes"))
        rank = int(process.stdout.readline().split()[-1])
        time.sleep(0.5)  # all buffers are full
        process.send_signal(signal.SIGTERM)
        self.assertEqual(still_running([rank]), [])
        rest = process.communicate(timeout=LIMIT_S)[0]
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertLess(len(rest), 16 << 20)


class Input(Case):
    def test_goes_to_rank_0_only(self):
        _, lines, _ = launch("-n", "3", "--", "cat", input="word\n")
        self.assertEqual(lines, ["[0] word"])

    def test_comes_from_a_terminal(self):
        controller, terminal = pty.openpty()
        process = self.start("-n", "2", *shell("read word; echo got $word"), stdin=terminal,
                             start_new_session=True)
        os.write(controller, b"hello\n")
        self.assertEqual(sorted(read_lines(process, 2)), ["[0] got hello", "[1] got"])
        process.communicate(timeout=LIMIT_S)
        os.close(controller)
        os.close(terminal)


class ExitCode(Case):
    def test_is_zero_when_all_ranks_end_well(self):
        self.assertEqual(launch("-n", "5", "--", "true"), (0, [], ""))

    def test_is_the_worst_and_the_first_is_named(self):
        script = "[ $RANK = 1 ] && exit 3; sleep 0.5; exit $RANK"
        code, _, errors = launch("-n", "3", *shell(script))
        self.assertEqual(code, 3)
        self.assertIn("rank 1 (pid", errors)
        self.assertIn("exited with code 3", errors)

    def test_is_128_and_the_signal(self):
        code, _, errors = launch("-n", "2", *shell("[ $RANK = 1 ] && kill -ABRT $$; exit 0"))
        self.assertEqual(code, 128 + signal.SIGABRT)
        self.assertIn("SIGABRT", errors)

    def test_of_a_program_that_cannot_run(self):
        code, _, errors = launch("-n", "2", "--", "no-such-program")
        self.assertEqual(code, 127)
        self.assertIn("cannot run 'no-such-program': No such file", errors)
        self.assertEqual(launch("-n", "2", "--", "/")[0], 126)

    def test_of_a_wrong_command_line(self):
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
        _, lines, _ = launch("-n", "1", *shell('for a; do echo "<$a>"; done'), "sh", *words)
        self.assertEqual(lines, [f"[0] <{word}>" for word in words])


class Ending(Case):
    def pids(self, process, count):
        return [int(line.split()[-1]) for line in read_lines(process, count)]

    def test_stragglers_get_grace_then_sigterm(self):
        script = ('[ $RANK = 0 ] && exit 9; trap "echo told; exit 0" TERM; '
                  "while :; do sleep 0.05; done")
        begin = time.monotonic()
        code, lines, errors = launch("-n", "3", "--grace", "0.5", *shell(script))
        self.assertGreater(time.monotonic() - begin, 0.5)
        self.assertEqual((code, sorted(lines)), (9, ["[1] told", "[2] told"]))
        self.assertIn("ranks 1-2 still run", errors)

    def test_stragglers_that_ignore_sigterm_are_killed(self):
        code, _, errors = launch("-n", "2", "--grace", "0", "--", sys.executable, "-c",
                                 "import os, signal, sys, time\n"
                                 "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                                 "os.environ['RANK'] == '0' and (time.sleep(1), sys.exit(4))\n"
                                 "time.sleep(1000)")
        self.assertEqual(code, 4)
        self.assertIn("ranks 1 ignore SIGTERM", errors)

    def test_stopped_straggler_goes_too(self):
        code, _, _ = launch("-n", "2", "--grace", "0.3",
                            *shell("[ $RANK = 0 ] && exit 5; kill -STOP $$"))
        self.assertEqual(code, 5)

    def test_timeout(self):
        code, _, errors = launch("-n", "2", "--timeout", "0.3", "--", "sleep", "1000")
        self.assertEqual(code, 124)
        self.assertIn("--timeout 0.3 s is over", errors)

    def test_signals_reach_all_ranks_and_their_children(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
                       signal.SIGUSR2):
            program = ("import os, signal\n"
                       "os.fork()\n"
                       "def tell(*_): os.write(1, b'told\\n'), os._exit(0)\n"
                       f"signal.signal({int(number)}, tell)\n"
                       "os.write(1, b'up\\n')\n"
                       "while True: signal.pause()")
            process = self.start("-n", "2", "--", sys.executable, "-c", program)
            self.assertEqual(sorted(read_lines(process, 4)), ["[0] up"] * 2 + ["[1] up"] * 2)
            process.send_signal(number)
            rest = process.communicate(timeout=LIMIT_S)[0]
            self.assertEqual(sorted(rest.splitlines()), ["[0] told"] * 2 + ["[1] told"] * 2,
                             number)
            self.assertEqual(process.returncode, 0)

    def test_second_interrupt_kills(self):
        script = 'trap "echo no" INT; echo up; while :; do sleep 0.05; done'
        process = self.start("-n", "2", *shell(script))
        read_lines(process, 2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(sorted(read_lines(process, 2)), ["[0] no", "[1] no"])
        process.send_signal(signal.SIGINT)
        self.assertIn("interrupted twice", process.communicate(timeout=LIMIT_S)[0])
        self.assertEqual(process.returncode, 128 + signal.SIGINT)

    def test_control_z_stops_ranks_and_continue_wakes_them(self):
        # One process: a shell whose vforked child is stopped before its exec waits in state D.
        process = self.start("-n", "1", *shell("echo $$; exec sleep 1000"))
        rank = self.pids(process, 1)[0]
        process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        self.assertTrue(self.state_becomes(rank, "T"))
        process.send_signal(signal.SIGCONT)
        self.assertTrue(self.state_becomes(rank, "SR"))
        process.terminate()
        process.communicate(timeout=LIMIT_S)

    def state_becomes(self, pid, states):
        for _ in range(500):
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in states:
                    return True
            time.sleep(0.01)
        return False

    def test_what_a_rank_left_behind_is_killed(self):
        process = self.start("-n", "2", *shell("sleep 1000 & echo $!; setsid sleep 1001 & echo $!"))
        left = self.pids(process, 4)
        process.communicate(timeout=LIMIT_S)
        self.assertEqual((process.returncode, still_running(left, 0)), (0, []))

    def test_killed_launcher_leaves_no_rank(self):
        process = self.start("-n", "4", *shell("echo $$; exec sleep 1000"))
        ranks = self.pids(process, 4)
        process.kill()
        self.assertEqual(still_running(ranks), [])
        process.communicate(timeout=LIMIT_S)

    def test_a_caller_that_ignores_sigchld_changes_nothing(self):
        code, _, _ = launch("-n", "2", *shell("exit $RANK"),
                            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(code, 1)

    def test_no_zombies_while_ranks_run(self):
        process = self.start("-n", "3", *shell("echo $$; [ $RANK != 2 ] || sleep 1000"))
        ranks = self.pids(process, 3)
        self.assertEqual(len(still_running(ranks, 2)), 1)
        self.assertTrue(any(self.is_gone(pid) for pid in ranks))
        process.terminate()
        process.communicate(timeout=LIMIT_S)

    def is_gone(self, pid):
        return not os.path.exists(f"/proc/{pid}")


if __name__ == "__main__":
    unittest.main()
