"""python -m ferry: the native commands pass through; an unknown command and a missing program are reported."""

import json
import re
import subprocess
import sys

import pytest

import ferry
from ferry import native_program
from ferry.__main__ import main


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "ferry", *map(str, arguments)], capture_output=True, text=True)


def test_bench_is_the_native_one_with_all_its_options():
    done = command("bench", "--ranks", 2, "--tokens", 4, "--hidden", 64, "--experts", 4, "--top-k", 2,
                   "--iterations", 2, "--check", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().split("\n")[-1])
    assert result["options"]["hidden"] == 64 and result["wrong"] == 0 and result["compared"] > 0


def test_a_native_command_keeps_its_exit_code_and_its_help():
    done = command("bench", "--sweep", "bogus")
    assert done.returncode == 2 and "'bogus' is not of the form tokens=1,2,.." in done.stderr
    assert "--tokens-per-rank" in command("bench", "--help").stdout


def test_a_plan_is_compared_with_what_a_bench_measured(tmp_path):
    measured = tmp_path / "bench.json"
    measured.write_text(command("bench", "--ranks", 2, "--tokens", 4, "--hidden", 64, "--experts", 4, "--top-k", 2,
                                "--iterations", 2, "--json").stdout)
    for within, code, told in [("10%", 1, "not within 10"), ("10", 1, "not within 10"), ("100%", 0, "is within 100")]:
        done = command("plan", "rank:2", "--expect", measured, "--within", within)  # no time on this machine
        assert done.returncode == code and told in done.stdout, done.stderr
    done = command("plan", "rank:2", "--expect", measured, "--within", "ten")
    assert done.returncode == 2 and "--within: Value ten" in done.stderr


def test_launch_starts_ranks_and_doctor_describes_the_machine():
    done = command("launch", "-n", 2, "--", sys.executable, "-c", "import os; print(os.environ['RANK'])")
    assert done.returncode == 0 and sorted(done.stdout.split("\n")[:2]) == ["[0] 0", "[1] 1"]
    assert json.loads(command("doctor", "--json").stdout)["machine"]["cores"] >= 1


def test_help_names_every_command_and_a_wrong_one_is_refused():
    told = command("--help").stdout
    native = subprocess.run([native_program.path(), "--help"], capture_output=True, text=True).stdout
    names = re.findall(r"^  (\w+) ", native.partition("Subcommands:\n")[2], re.MULTILINE)
    assert "topology" in names
    for name in (*names, "plot", "compare"):
        assert f"\n    {name} " in told
        done = command(name, "--help")
        assert done.returncode == 0 and all(letter.isprintable() or letter == "\n" for letter in done.stdout)
    for arguments in ((), ("wash",)):
        done = command(*arguments)
        assert done.returncode == 2 and "usage: ferry" in done.stderr


def test_the_version_is_that_of_the_native_program_and_of_the_package():
    assert command("--version").stdout == f"ferry {ferry.__version__}\n"


def test_doctor_names_a_distribution_that_owns_the_same_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ferry, "__path__", [str(tmp_path / "ferry")])
    for name in ("ferry-0.1.0.dist-info", "ferry_ep-0.2.0.dist-info", "ferry-cli-0.1.1.dist-info"):
        (tmp_path / name).mkdir()
    main(["doctor"])  # no native program there
    told = capsys.readouterr().err
    assert told.startswith("ferry doctor: ferry-0.1.0.dist-info owns the same files as ferry-ep")
    assert told.count("\n") == 1
    (tmp_path / "ferry-0.1.0.dist-info").rmdir()
    main(["doctor"])
    assert not capsys.readouterr().err


def test_a_missing_native_program_is_told_with_the_place(monkeypatch, tmp_path):
    monkeypatch.setattr(ferry, "__path__", [str(tmp_path)])
    told = main(["doctor"])
    assert told.startswith(f"ferry doctor: the native program is not installed at {tmp_path}/bin/ferry")
    with pytest.raises(FileNotFoundError, match="install the package with pip"):
        native_program.path()


def test_plot_draws_and_tells_faults(tmp_path):
    file, out = tmp_path / "point.json", tmp_path / "out.svg"
    bench = command("bench", "--ranks", 1, "--tokens", 2, "--hidden", 64, "--experts", 4, "--top-k", 2,
                    "--iterations", 2, "--json")
    file.write_text(bench.stdout)
    done = command("plot", file, "-o", out, "--title", "one point")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and "one point" in out.read_text()
    done = command("plot", tmp_path / "none.json", "-o", out)
    assert done.returncode == 1 and done.stderr == f"ferry plot: {tmp_path}/none.json: No such file or directory\n"
    assert command("plot", file).returncode == 2  # no --out
    assert "invalid choice: 'pie'" in command("plot", file, "-o", out, "--kind", "pie").stderr
