"""The wheel that scripts/test.sh made: its contents, alone in a new environment, and on an old processor."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEELS = sorted(ROOT.glob("build/wheel/ferry_ep-*.whl"))
pytestmark = pytest.mark.skipif(not WHEELS, reason="no wheel in build/wheel: scripts/test.sh python makes it")

PROGRAM = str(ROOT / "tests/install/first_program.py")
VERSION = re.search(r"project\(ferry VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The Python of a new environment that has the wheel, by the name that users give to pip, and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(WHEELS[-1].parent)]
    subprocess.run([*pip, "ferry-ep"], check=True)
    return python


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_the_package_its_types_and_the_command_line():
    names = set(zipfile.ZipFile(WHEELS[-1]).namelist())
    assert {"ferry/__init__.py", "ferry/_core.pyi", "ferry/py.typed", "ferry/bin/ferry", "ferry/deep_ep/__init__.py",
            "ferry/torch_npu/__init__.py"} <= names
    assert not [name for name in names if "/include/" in name or name.endswith((".cc", ".h"))]


def test_it_has_nothing_that_serves_this_repository_only():
    programs = {file.name for file in (ROOT / "bench").rglob("*.py")}
    assert {"gallery.py", "planned.py", "report.py", "suite.py"} <= programs
    in_bench = {name for name in zipfile.ZipFile(WHEELS[-1]).namelist() if name.startswith("ferry/bench/")}
    assert "ferry/bench/compare.py" in in_bench
    assert not {name for name in in_bench if Path(name).name in programs}


# The versions that RHEL 9 and everything later have, as the tag manylinux_2_34 of `make wheel` promises.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)}


def test_it_asks_the_system_for_nothing_newer_than_make_wheel_promises(alone):
    folder = Path(run(alone, "-c", "import ferry; print(ferry.__path__[0])").strip())
    for file in (*folder.glob("_core*.so"), folder / "bin/ferry"):
        for symbol in re.findall(r"\((\w+)_([0-9.]+)\) *(\w+)", run("objdump", "-T", str(file))):
            version = tuple(map(int, symbol[1].split(".")))
            assert version <= NEWEST.get(symbol[0], version), f"{file.name} needs {symbol}"


def test_no_file_of_it_has_a_name_of_cann(alone):
    folder = Path(run(alone, "-c", "import ferry; print(ferry.__path__[0])").strip())
    for file in (*folder.glob("_core*.so"), folder / "bin/ferry"):
        assert not re.findall(r"\b(?:acl|Hccl)\w+", run("nm", "-D", str(file))), file.name


def test_it_works_without_numpy_and_torch(alone):
    assert run(alone, PROGRAM) == f"ferry {VERSION} works\n"


def test_it_works_on_a_processor_of_2008(alone):
    emulator = shutil.which("qemu-x86_64")
    if emulator is None or "x86_64" not in WHEELS[-1].name:
        pytest.skip("no qemu-x86_64, or not that processor")
    assert run(emulator, "-cpu", "Nehalem", alone, PROGRAM, "without-command") == f"ferry {VERSION} works\n"


def test_the_fronts_say_what_they_need(alone):
    done = subprocess.run([alone, "-c", "import ferry.deep_ep"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "torch" in done.stderr


def test_ferry_prefers_the_ucx_that_pip_installed():
    found = json.loads(run(sys.executable, "-m", "ferry", "doctor", "--json"))["network"]
    assert re.match(r"1\.22\.0 \(.*site-packages/libucx/lib/libucp.so", found["ucx"])
    assert found["link"].startswith("UCX 1.22.0 tcp")


def test_installing_the_build_that_it_was_made_in_takes_no_python(tmp_path):
    build = ROOT / "build/release"
    libraries = ("libferry.so", "cann/libferry_cann.so", "plan/libferry_plan.so")
    if missing := [name for name in libraries if not (build / "src" / name).exists()]:
        pytest.skip(f"not built in build/release: {', '.join(missing)}")
    run("cmake", "--install", str(build), "--prefix", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "include", "lib"}
