"""scripts/test.sh: what it counts, and which steps it need not run again."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from test_release import commit, git

ROOT = Path(__file__).resolve().parents[2]
# The steps format and bare: each notes that it ran, and fails or waits where a file beside the tree says so.
STEP = """#!/bin/sh
step=$(basename "$0")
echo "$step" >>../ran
[ ! -e "../waits-$step" ] || exec sleep 60
[ ! -e "../fails-$step" ]
"""


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    (tree / "scripts/test.sh").write_bytes((ROOT / "scripts/test.sh").read_bytes())
    for name in ("format.sh", "check_install.sh"):
        (tree / "scripts" / name).write_text(STEP)
    for file in (tree / "scripts").iterdir():
        file.chmod(0o755)
    (tree / ".gitignore").write_text("/build/\n")
    git(tree, "init", "--quiet")
    commit(tree)
    return tree


def command(tree, *words, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "FERRY_STRESS"} | variables
    return {"args": [tree / "scripts/test.sh", *words], "env": environment, "stdout": subprocess.PIPE, "text": True}


def run(tree, *words, **variables):
    """(what ran, the last lines of the output) of test.sh."""
    ran = tree.parent / "ran"
    ran.unlink(missing_ok=True)
    done = subprocess.run(**command(tree, *words, **variables))
    last = done.stdout.splitlines()[-2:]
    assert done.returncode == (0 if last[1].endswith(" 0 failed") else 1)
    return ran.read_text().split() if ran.exists() else [], last


def check(outcome, ran, passed, failed=0, earlier=0):
    assert outcome[0] == ran
    assert outcome[1][1] == f"{passed} passed, {failed} failed"
    if earlier:
        assert outcome[1][0] == f"{earlier} of those that passed did so in an earlier run on this commit"
    else:
        assert outcome[1][0].endswith("s in all")


def test_a_step_that_passed_is_counted_and_not_run_again(tree):
    check(run(tree, "--known", "format", "bare"), ["format.sh", "check_install.sh"], 2)
    check(run(tree, "--known", "format"), [], 1, earlier=1)
    check(run(tree, "--go-on", "--known", "bare"), [], 2, earlier=2)


def test_without_the_option_each_step_runs(tree):
    run(tree, "format")
    check(run(tree, "format"), ["format.sh"], 1)


def test_a_step_that_failed_runs_again(tree):
    (tree.parent / "fails-format.sh").touch()
    check(run(tree, "--known", "format", "bare"), ["format.sh", "check_install.sh"], 1, failed=1)
    check(run(tree, "--known", "format", "bare"), ["format.sh"], 1, failed=1, earlier=1)


def test_a_step_that_fails_later_is_forgotten(tree):
    run(tree, "format")
    (tree.parent / "fails-format.sh").touch()
    run(tree, "format")
    (tree.parent / "fails-format.sh").unlink()
    check(run(tree, "--known", "format"), ["format.sh"], 1)


def test_another_commit_knows_nothing_of_the_first(tree):
    run(tree, "format")
    commit(tree)
    check(run(tree, "--known", "format"), ["format.sh"], 1)
    git(tree, "checkout", "--quiet", "HEAD^")
    check(run(tree, "--known", "format"), ["format.sh"], 1)


def test_a_changed_tree_remembers_nothing(tree):
    run(tree, "format")
    (tree / "new").touch()
    check(run(tree, "--known", "format"), ["format.sh"], 1)
    check(run(tree, "--known", "format"), ["format.sh"], 1)
    (tree / "new").unlink()
    check(run(tree, "--known", "format"), ["format.sh"], 1)


def test_a_step_beside_which_the_tree_changed_is_not_remembered(tree):
    (tree / "scripts/check_install.sh").write_text(STEP + "touch new\n")
    commit(tree)
    run(tree, "bare")
    (tree / "new").unlink()
    check(run(tree, "--known", "bare"), ["check_install.sh"], 1)


def test_other_lengths_of_tests_are_not_remembered(tree):
    run(tree, "format")
    check(run(tree, "--known", "format", FERRY_STRESS="0.01"), ["format.sh"], 1)
    check(run(tree, "--known", "format"), ["format.sh"], 1)


def test_a_run_that_was_killed_goes_on_where_it_was(tree):
    waits = tree.parent / "waits-check_install.sh"
    waits.touch()
    killed = subprocess.Popen(**command(tree, "--known", "format", "bare"), start_new_session=True)
    ran, deadline = tree.parent / "ran", time.monotonic() + 60
    while not ran.exists() or "check_install.sh" not in ran.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    waits.unlink()
    check(run(tree, "--known", "format", "bare"), ["check_install.sh"], 2, earlier=1)
