"""`make gallery`: it refuses on a machine that is not idle, before anything is drawn."""

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from ferry.bench import gallery  # noqa: E402


def test_the_spread_is_that_of_the_slowest_and_the_fastest_run_over_the_median():
    assert gallery.judge([100, 104, 109, 101, 103]) == pytest.approx(9 / 103)
    with pytest.raises(gallery.Noisy, match="5 runs of the baseline took 100 to 111 us, a spread of 11%; at most 10%"):
        gallery.judge([100, 104, 111, 101, 102])


@pytest.mark.parametrize("noisy", ["first", "last"])
def test_a_noisy_baseline_first_or_last_changes_no_picture(monkeypatch, tmp_path, noisy):
    measured = []

    def bench(command):
        slow = len(measured) == (0 if noisy == "first" else gallery.BASELINE_RUNS)
        measured.append(command)
        return f"table\n{json.dumps({'pair_us': {'median': 1300 if slow else 1000}})}\n"

    monkeypatch.setattr(gallery, "run", bench)
    monkeypatch.setattr(gallery, "measure_files", lambda ferry, folder: None)
    monkeypatch.setattr(gallery.suite, "collect", lambda options: {})
    monkeypatch.setattr("sys.argv", ["gallery"])
    monkeypatch.chdir(tmp_path)
    assert gallery.main().endswith("make the machine idle; no picture was changed")
    assert len(measured) == gallery.BASELINE_RUNS * (1 if noisy == "first" else 2)
    assert not list(Path().iterdir())
