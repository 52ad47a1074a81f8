"""ferry.plot: the contents of pictures of real results of small benches."""

import json
import re
import statistics
import subprocess
import sys
from xml.etree import ElementTree

import pytest

matplotlib = pytest.importorskip("matplotlib")

from ferry import native_program, plot  # noqa: E402
from ferry.bench import ratio_chart, results, style, time_chart, timeline_chart, words  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
SWEEP = [1, 4, 16]


def bench(*options):
    """All that `ferry bench --json` prints."""
    shape = ["--hidden", "256", "--experts", "8", "--top-k", "2", "--iterations", "5"]
    done = subprocess.run([native_program.path(), "bench", *shape, "--json", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """sweep1, sweep2: output of sweeps on 1 and 2 ranks; trace; runs: two programs, two rounds, one shape."""
    folder = tmp_path_factory.mktemp("results")
    for ranks in (1, 2):
        sweep = ",".join(map(str, SWEEP))
        folder.joinpath(f"sweep{ranks}.json").write_text(bench("--ranks", str(ranks), "--sweep", f"tokens={sweep}"))
    bench("--ranks", "3", "--tokens", "8", "--trace", str(folder / "trace.json"))
    runs = []
    for number in range(2):
        for program, mode in (("ferry", "processes"), ("rival", "threads")):
            result = last_line(bench("--ranks", "2", "--tokens", "8", "--mode", mode))
            if program == "rival":  # as for other programs: no limit, a library
                result = {"library": "Open MPI v4.1.4", "pair_us": result["pair_us"]}
            runs.append({"section": "shapes", "case": [8, 256, 2, 8], "program": program, "round": number,
                         "result": result})
    runs.append({"section": "skew", "case": [2, 8], "program": "real", "round": 0, "result": {}})
    runs.append({"section": "shapes", "case": [8, 256, 2, 8], "program": "broken", "round": 0,
                 "result": {"error": "exit code 1"}})
    folder.joinpath("runs.json").write_text(json.dumps({"machine": {}, "runs": runs}))
    return folder


def last_line(text):
    return json.loads(text.strip().rpartition("\n")[2])


def picture_of(chart, path, title=None):
    with style.look():
        return chart.drawing(results.read(path)[1], title)


def texts_of(file):
    return ["".join(text.itertext()) for text in ElementTree.parse(file).iter(f"{SVG}text")]


# ---- input


def test_a_sweep_is_read_from_all_that_the_bench_printed(folder):
    written = last_line((folder / "sweep2.json").read_text())["points"]
    form, points = results.read(folder / "sweep2.json")
    assert form == "points"
    assert [point.tokens for point in points] == SWEEP
    assert [point.pair_us for point in points] == [point["pair_us"]["median"] for point in written]
    assert [point.limit_us for point in points] == [point["limit_us"]["pair"] for point in written]
    assert [point.over_limit for point in points] == [point["limit_ratio"] for point in written]
    assert points[0].setting == {"ranks": "2 ranks", "hidden": "hidden 256", "experts": "top 2 of 8 experts",
                                 "dtype": "bf16"}


def test_one_point_is_read_with_what_does_not_go_without_saying(tmp_path):
    file = tmp_path / "point.json"
    file.write_text(bench("--ranks", "2", "--tokens", "3", "--wire", "fp8", "--mode", "threads",
                          "--mask-fraction", "0.5"))
    (point,) = results.read(file)[1]
    assert point.tokens == 3
    assert list(point.setting.values()) == ["2 ranks", "hidden 256", "top 2 of 8 experts", "bf16", "threads",
                                            "wire fp8", "50% masked"]


def test_ratios_are_taken_within_a_round_and_failed_runs_and_other_sections_left_out(folder):
    runs = json.loads((folder / "runs.json").read_text())["runs"]
    pairs = {(run["program"], run["round"]): run["result"]["pair_us"]["median"] for run in runs[:4]}
    limits = {run["round"]: run["result"]["limit_us"]["pair"] for run in runs[:4] if run["program"] == "ferry"}
    found = {result.program: result for result in results.read(folder / "runs.json")[1]}
    assert list(found) == ["ferry", "Open MPI, rival"]
    for name, program in (("ferry", "ferry"), ("rival", "Open MPI, rival")):
        ratios = [pairs[name, number] / limits[number] for number in range(2)]
        assert found[program].over_limit == pytest.approx(statistics.median(ratios))
        assert found[program].pair_us == pytest.approx(statistics.median(pairs[name, number] for number in range(2)))


def test_a_trace_is_read_span_by_span(folder):
    events = [event for event in json.loads((folder / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    form, spans = results.read(folder / "trace.json")
    assert form == "trace" and len(spans) == len(events)
    assert {span.exchange for span in spans} == set(range(20))
    wholes = [span for span in spans if not span.phase]
    assert len(wholes) == 3 * 20 * 2 and all(len(span.wait_us) == 3 for span in wholes)
    assert {span.phase for span in spans if span.operation == "combine"} == {"", "publish", "outputs", "reduce"}


# ---- drawings


def test_time_has_a_line_and_a_limit_for_each_setting_on_logarithmic_axes(folder, tmp_path):
    out = tmp_path / "time.svg"
    plot.draw([folder / "sweep1.json", folder / "sweep2.json"], out, title="A & B")
    texts = texts_of(out)
    for words_there in ("A & B", "1 rank", "2 ranks", "tokens per rank", "1", "4", "16"):
        assert words_there in texts
    assert texts.count("places known") == 2
    known = "places known: the same rows moved by threads that know all places"
    assert f"hidden 256, top 2 of 8 experts, bf16; {known}" in texts
    both = [point for name in ("sweep1", "sweep2") for point in results.read(folder / f"{name}.json")[1]]
    with style.look():
        (axes,) = time_chart.drawing(both, None).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert drawn == [(SWEEP, [getattr(point, value) for point in part]) for value in ("pair_us", "limit_us")
                     for part in (both[:3], both[3:])]
    assert len({line.get_color() for line in axes.lines}) == 2


@pytest.mark.parametrize("file", ["sweep1", "runs", "trace"])
def test_a_note_stands_below_every_kind_of_picture(folder, tmp_path, file):
    heights = []
    for note in (None, "2026-01-31 12:00, 2 cores, load 0.1"):
        plot.draw([folder / f"{file}.json"], tmp_path / "out.svg", note=note)
        assert (note in texts_of(tmp_path / "out.svg")) == bool(note)
        heights.append(float(ElementTree.parse(tmp_path / "out.svg").getroot().get("height").removesuffix("pt")))
    assert heights[1] > heights[0]


def test_one_setting_is_named_by_its_program_and_its_limit_is_ink(folder):
    (axes,) = picture_of(time_chart, folder / "sweep2.json").axes
    assert {text.get_text() for text in axes.texts} == {"ferry", "places known"}
    assert axes.lines[1].get_color() == style.INK


def test_labels_of_lines_that_end_together_do_not_touch(folder):
    result = results.read(folder / "sweep1.json")[1][0]
    same = [results.Result(f"program {at}", result.setting, 4, 10.0, 9.9, 1.0) for at in range(5)]
    with style.look():
        (axes,) = time_chart.drawing(same, None).axes
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert len(heights) == 6 and min(b - a for a, b in zip(heights, heights[1:])) > time_chart.LABEL_GAP * 0.99


def test_ratios_have_a_bar_as_long_as_the_ratio_for_each_program(folder, tmp_path):
    found = results.read(folder / "runs.json")[1]
    (axes,) = picture_of(ratio_chart, folder / "runs.json").axes
    assert [bar.get_width() for bar in axes.patches] == [result.over_limit for result in found]
    assert list(axes.lines[0].get_xdata()) == [1, 1]
    plot.draw([folder / "runs.json"], tmp_path / "ratios.svg")
    texts = texts_of(tmp_path / "ratios.svg")
    for words_there in ("ferry", "Open MPI, rival", "places known"):
        assert words_there in texts
    assert all(words.three_digits(result.over_limit) in texts for result in found)
    assert "8 tokens per rank" in texts and any("2 ranks, hidden 256" in text for text in texts)


def test_a_sweep_can_be_shown_as_ratios_and_runs_as_times(folder, tmp_path):
    plot.draw([folder / "sweep2.json"], tmp_path / "a.svg", kind="ratios")
    assert [text for text in texts_of(tmp_path / "a.svg") if text.endswith("per rank")] == [
        "1 token per rank", "4 tokens per rank", "16 tokens per rank"]
    plot.draw([folder / "runs.json"], tmp_path / "b.svg", kind="time")
    assert {"ferry", "Open MPI, rival", "places known"} <= set(texts_of(tmp_path / "b.svg"))


def test_the_timeline_shows_the_median_exchange_with_every_phase_of_every_rank(folder, tmp_path):
    spans = results.read(folder / "trace.json")[1]
    lengths = {}
    for exchange in range(20):
        own = [span for span in spans if span.exchange == exchange]
        lengths[exchange] = max(span.end_us for span in own) - min(span.begin_us for span in own)
    shown, count = timeline_chart.median_exchange(spans)
    assert count == 20 and sorted(lengths.values())[10] == lengths[shown]
    phases = [span for span in spans if span.exchange == shown and span.phase]
    (axes,) = picture_of(timeline_chart, folder / "trace.json").axes
    assert sorted(bar.get_width() for bar in axes.patches) == pytest.approx(
        sorted(span.end_us - span.begin_us for span in phases))
    plot.draw([folder / "trace.json"], tmp_path / "timeline.svg")
    texts = texts_of(tmp_path / "timeline.svg")
    on_one_node = set(timeline_chart.PHASES) - {"sums"}
    for words_there in ("rank 0", "rank 1", "rank 2", "dispatch:", "combine:", "waited", *on_one_node):
        assert words_there in texts
    waited = sum(sum(span.wait_us) for span in spans if span.exchange == shown and span.rank == 1)
    assert words.time_text(waited) in texts


# ---- the files


def test_an_svg_is_small_the_same_each_time_and_knows_the_dark(folder, tmp_path):
    for name in ("a.svg", "b.svg"):
        plot.draw([folder / "sweep1.json", folder / "sweep2.json"], tmp_path / name, title="a < b")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text() and len(text) < 20_000
    assert ElementTree.fromstring(text).find(f"{SVG}title").text == "a < b"
    assert set(re.findall(r"http[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    dark = re.search(r"prefers-color-scheme: dark\)\{(.*)\}</style>", text)[1]
    for light in set(re.findall(r"(?:fill|stroke): (#\w+)", text.replace(dark, ""))) - set(style.SERIES):
        assert f'"fill: {light}"' in dark, light


def test_a_png_has_the_width_of_a_report(folder, tmp_path):
    plot.draw([folder / "trace.json"], tmp_path / "out.PNG")
    content = (tmp_path / "out.PNG").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20], "big") == style.WIDTH_IN * style.PIXELS_PER_INCH


def test_settings_of_matplotlib_stay_as_they_were(folder, tmp_path):
    before = dict(matplotlib.rcParams)
    plot.draw([folder / "sweep2.json"], tmp_path / "out.svg")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("us, told", [(0, "0.00 µs"), (0.5, "0.50 µs"), (9.87, "9.87 µs"), (12.34, "12.3 µs"),
                                      (999.4, "999 µs"), (999.6, "1.00 ms"), (12345, "12.3 ms"), (2.5e6, "2.50 s"),
                                      (3.6e9, "3600 s")])
def test_times_read_well(us, told):
    assert words.time_text(us) == told


@pytest.mark.parametrize("us, told", [(0, "0"), (0.1, "0.1 µs"), (100, "100 µs"), (15_000, "15 ms"), (1e6, "1 s")])
def test_ticks_read_well(us, told):
    assert words.tick_text(us) == told


# ---- faults


def refusal(files, out="out.svg", **options):
    with pytest.raises(plot.ResultsError) as caught:
        plot.draw(files, out, **options)
    return str(caught.value)


def test_files_that_are_no_results_are_refused_by_name(tmp_path):
    file = tmp_path / "some.json"
    assert refusal([tmp_path / "none.json"]) == f"{tmp_path / 'none.json'}: No such file or directory"
    assert refusal([tmp_path]) == f"{tmp_path}: Is a directory"
    for content, told in (("{ 1", "not JSON of ferry: line 1"), ("", "not JSON"), ("[1, 2]", "a list, not an object"),
                          ("[" * 100_000, "not JSON of ferry: it is nested too deep"),
                          ("{}", "neither results nor a trace of ferry (KeyError"),
                          ('{"runs": 3}', "neither results nor a trace"),
                          ('{"runs": [{"section": "shapes"}]}', "neither results nor a trace"),
                          ('{"traceEvents": []}', "no spans"), ('{"traceEvents": [7]}', "neither results nor a trace")):
        file.write_text(content)
        assert told in refusal([file]) and str(file) in refusal([file])
    file.write_bytes(b"\xff\xfe\x00")
    assert refusal([file]) == f"{file}: not text"


def test_kinds_that_do_not_fit_the_file_are_refused(folder, tmp_path):
    sweep, trace = folder / "sweep1.json", folder / "trace.json"
    assert refusal([sweep], kind="pie") == "'pie' is no kind of picture: time, ratios or timeline"
    assert refusal([sweep], kind="timeline") == (
        f"{sweep}: a picture of kind 'timeline' needs a trace of ferry bench --trace")
    assert f"{trace}: a picture of kind 'time' needs results" in refusal([sweep, trace])
    assert refusal([trace, trace]) == f"{trace}: a timeline shows one trace"


def test_results_that_cannot_be_drawn_are_refused(tmp_path):
    file = tmp_path / "zero.json"
    file.write_text(bench("--ranks", "1", "--tokens", "0"))
    assert "0 tokens have no place on a logarithmic axis" in refusal([file])
    run = {"section": "shapes", "case": [8, 256, 2, 8], "program": "rival", "round": 0,
           "result": {"options": {"ranks": 2}, "pair_us": {"median": 3.0}}}
    file.write_text(json.dumps({"runs": [run]}))
    assert "no result has a time with places known" in refusal([file])
    file.write_text('{"runs": []}')
    assert f"{file}: neither results nor a trace of ferry (ValueError: no run of section" in refusal([file])


def test_places_that_cannot_be_written_are_refused(folder, tmp_path):
    assert refusal([folder / "sweep1.json"], tmp_path / "out.jpg") == (
        f"{tmp_path / 'out.jpg'}: a picture is an svg or a png, not '.jpg'")
    missing = tmp_path / "no" / "out.svg"
    assert refusal([folder / "sweep1.json"], missing) == f"{missing}: No such file or directory"


def test_without_matplotlib_the_command_says_what_to_install(folder, tmp_path):
    program = ("import sys; sys.modules['matplotlib'] = None\n"
               "from ferry.__main__ import main; sys.exit(main(sys.argv[1:]))")
    done = subprocess.run([sys.executable, "-c", program, "plot", folder / "sweep1.json", "-o", tmp_path / "out.svg"],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "pictures need matplotlib: python -m pip install matplotlib" in done.stderr
