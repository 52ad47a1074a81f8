"""`make gallery`: every picture of docs/, with the tables of docs/benchmarks.md and README.md, in one go on an idle
machine. Refuses where a baseline, measured first and last, varies too much for pictures to be read. Runs in the root
of the repository."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import suite
from ferry.bench.measure import say, time_left
from ferry.bench.page import when_and_where
from ferry.bench.plot import draw
from ferry.bench.programs import options_of

BASELINE = options_of(ranks=2, tokens=128, hidden=2048, experts=128, top_k=8)
BASELINE_RUNS = 12
# The limit for (third quartile - first quartile) / median of the baseline's runs. Quartiles ignore a single run that
# the machine interrupted, but show a memory of two speeds. The limit is half of the smallest difference that the
# pictures show: that between ferry and the same traffic with places known is 0.2 where exchanges are small (README).
LARGEST_SPREAD = 0.1
SWEEP = "tokens=1,2,4,8,16,32,64,128,256"
COMPARISON = options_of(ranks=4, tokens="16,128", hidden=2048, experts=128)


class Noisy(RuntimeError):
    """Raised when the machine is not idle enough."""


def spread(times):
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / median


def judge(times):
    """The spread of a baseline's times in microseconds. Raises Noisy."""
    found = spread(times)
    if found > LARGEST_SPREAD:
        raise Noisy(f"{len(times)} runs of the baseline took {min(times):.0f} to {max(times):.0f} us, their quartiles "
                    f"{found:.0%} apart; at most {LARGEST_SPREAD:.0%} lets pictures be read: make the machine idle")
    return found


def run(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def baseline(ferry):
    times, began = [], time.monotonic()
    for number in range(BASELINE_RUNS):
        say(f"  baseline, run {number + 1} of {BASELINE_RUNS}{time_left(began, number, BASELINE_RUNS)} ..")
        result = json.loads(run([ferry, "bench", *BASELINE, "--pin", "--json"]).rstrip().rpartition("\n")[2])
        times.append(result["pair_us"]["median"])
    say("")
    return judge(times)


def measure_files(ferry, folder):
    """Measures the data of the pictures, by the commands that docs/gallery.md shows."""
    for name, ranks in (("two", 2), ("eight", 8)):
        say(f"  sweep of {ranks} ranks ..")
        (folder / f"{name}.json").write_text(run([ferry, "bench", "--ranks", ranks, "--sweep", SWEEP, "--json"]))
    say("  timeline ..")
    run([ferry, "bench", "--ranks", 8, "--tokens", 128, "--trace", folder / "trace.json"])
    say("")
    compare = [sys.executable, "-m", "ferry", "compare", *COMPARISON, "--json", str(folder / "compare.json")]
    subprocess.run(compare, check=True)


def draw_all(ferry, folder, pictures, note):
    draw([folder / "two.json", folder / "eight.json"], pictures / "time.svg", note=note)
    draw([folder / "compare.json"], pictures / "ratios.svg", note=note)
    draw([folder / "compare.json"], pictures / "compare.svg", kind="time", note=note)
    draw([folder / "trace.json"], pictures / "timeline.svg", note=note)
    run([ferry, "topology", "dies16:2", "--draw", pictures / "dies16.svg"])  # bytes that are counted, not measured


def make(options):
    ferry = options.build / "tools/ferry"
    where, first = when_and_where(), baseline(ferry)
    with tempfile.TemporaryDirectory(prefix="ferry-gallery-") as name:
        folder = Path(name)
        results = suite.collect(options)
        measure_files(ferry, folder)
        last = baseline(ferry)
        note = results["made"] = f"{where}; a baseline varied by {first:.1%} before and {last:.1%} after"
        source = options.build / "bench.json"
        source.write_text(json.dumps(results))
        print(suite.write_reports(results, source, Path("docs"), Path("README.md")))
        draw_all(ferry, folder, Path("docs/pictures"), note)


def main():
    parser = argparse.ArgumentParser(description="Make every picture of the documents anew")
    suite.add_arguments(parser)
    try:
        make(parser.parse_args())
    except (Noisy, RuntimeError, subprocess.CalledProcessError) as error:
        return f"gallery: {error}; no picture was changed"
    return 0


if __name__ == "__main__":
    sys.exit(main())
