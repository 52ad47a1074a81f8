#!/usr/bin/env python3
"""count_tests.py <build folder>: counts the tests that ctest ran there, from its report ctest.xml and from
results/<run>.xml of each GoogleTest run. Prints "<passed> <failed> <skipped>", then "FAILED: <name>" for each test that
failed, and "AGAIN: <run>" for each run that failed at first and passed when it was run again (again.xml is the report
of the second run). A run that ended before it wrote its results is one failed test. Called by scripts/test.sh."""

import sys
from pathlib import Path
from xml.etree import ElementTree


def runs_of(report):
    """The runs of ctest by name."""
    return {run.get("name"): run for run in ElementTree.parse(report).iter("testcase")} if report.exists() else {}


def tests_of(run, results):
    """Yields (name, "passed", "failed" or "skipped") of one run of ctest."""
    name, status = run.get("name"), run.get("status")
    file = results / f"{name}.xml"
    cases = ElementTree.parse(file).iter("testcase") if file.exists() and status != "notrun" else []
    failed = False
    for case in cases:
        if case.get("status") != "run":
            continue
        verdict = "skipped" if case.get("result") == "skipped" else "passed"
        verdict = "failed" if case.find("failure") is not None else verdict
        failed |= verdict == "failed"
        yield f"{name}: {case.get('classname')}.{case.get('name')}", verdict
    if status == "fail" and not failed:
        yield name, "failed"
    elif not file.exists():
        yield name, {"run": "passed", "fail": "failed"}.get(status, "skipped")


def main(folder):
    first, again = runs_of(folder / "ctest.xml"), runs_of(folder / "again.xml")
    verdicts = []
    for run in {**first, **again}.values():
        verdicts += tests_of(run, folder / "results")
    print(*(sum(verdict == which for _, verdict in verdicts) for which in ("passed", "failed", "skipped")))
    for name, verdict in verdicts:
        if verdict == "failed":
            print("FAILED:", name)
    for name, run in again.items():
        if run.get("status") == "run":
            print("AGAIN:", name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
