"""`make gallery`: it refuses on a machine that is not idle, before anything is drawn."""

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import gallery  # noqa: E402


def test_the_spread_is_that_of_the_quartiles_over_the_median():
    assert gallery.judge([100, 104, 130, 101, 103]) == pytest.approx(3 / 103)
    with pytest.raises(gallery.Noisy, match="5 runs of the baseline took 100 to 120 us, their quartiles 14% apart; at "
                                            "most 10%"):
        gallery.judge([100, 101, 103, 115, 120])


@pytest.mark.parametrize("noisy", ["first", "last"])
def test_a_noisy_baseline_first_or_last_changes_no_picture(monkeypatch, tmp_path, noisy):
    measured = []

    def bench(command):
        half = gallery.BASELINE_RUNS // 2
        slow = len(measured) % gallery.BASELINE_RUNS < half and (noisy == "first") == (len(measured) < 2 * half)
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
