"""python -m ferry compare: the same routing for all, verified results, and a table of the measurements."""

import argparse
import importlib.util
import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import planned  # noqa: E402
from ferry import native_program  # noqa: E402
from ferry.__main__ import main  # noqa: E402
from ferry.bench import compare, programs, work, words  # noqa: E402
from ferry.bench.measure import Job, measure, run_once  # noqa: E402
from ferry.bench.places import flags_now_ns, in_place, main_place  # noqa: E402
from ferry.bench.rank import summary  # noqa: E402

SHAPE = work.Shape(tokens=6, hidden=64, ranks=2, experts=8, top_k=2)
COMMAND = ["--ranks", "2", "--hidden", "64", "--experts", "8", "--top-k", "2", "--iterations", "3"]


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "ferry", "compare", *arguments], capture_output=True, text=True)


# ---- the work


@pytest.mark.parametrize("shape, seed", [(work.Shape(33, 16, 4, 12, 3), 1), (work.Shape(7, 16, 3, 9, 9), 5),
                                         (work.Shape(100, 16, 2, 64, 8), 2**40 + 3)])
def test_routing_is_that_of_the_native_bench(shape, seed):
    routes = [work.route(shape, seed, rank) for rank in range(shape.ranks)]
    for ids, weights in routes:
        assert ids.shape == weights.shape == (shape.tokens, shape.top_k)
        assert all(len(set(row)) == shape.top_k for row in ids.tolist())
        assert torch.allclose(weights.sum(1), torch.ones(shape.tokens))
    owners = torch.stack([ids for ids, _ in routes]) // shape.local_experts  # [R, T, K]
    sources = torch.arange(shape.ranks).view(-1, 1, 1)
    loads = torch.bincount(owners.flatten(), minlength=shape.ranks)
    options = ["--ranks", shape.ranks, "--tokens", shape.tokens, "--hidden", shape.hidden, "--experts", shape.experts,
               "--top-k", shape.top_k, "--seed", seed, "--iterations", 1, "--json"]
    done = subprocess.run([native_program.path(), "bench", *map(str, options)], capture_output=True, text=True)
    native = json.loads(done.stdout.strip().split("\n")[-1])
    assert native["remote_rows"] == int((owners != sources).sum())
    assert native["imbalance"] == pytest.approx(float(loads.max() / loads.float().mean()))


def received(shape, seed, rank):
    """By hand: (rows, tokens_per_expert) that `rank` must receive."""
    every = [work.Work(shape, seed, source) for source in range(shape.ranks)]
    rows, counts = [], []
    for expert in range(rank * shape.local_experts, (rank + 1) * shape.local_experts):
        mine = [each.tokens[token] for each in every for token in range(shape.tokens)
                if expert in each.topk_ids[token]]
        rows, counts = rows + mine, [*counts, len(mine)]
    return torch.stack(rows), torch.tensor(counts)


def test_received_rows_are_compared_bit_for_bit_and_in_order():
    mine = work.Work(SHAPE, 3, 1)
    rows, counts = received(SHAPE, 3, 1)
    assert mine.wrong_received(rows, counts) == 0
    bent = rows.clone()
    bent[2, 5] = -bent[2, 5]
    assert mine.wrong_received(bent, counts) == 1
    assert mine.wrong_received(rows.flip(0), counts) > 0
    assert mine.wrong_received(rows, counts.flip(0)) > 0 or torch.equal(counts, counts.flip(0))
    assert mine.wrong_received(rows[:-1], counts) > 0


def test_results_are_compared_with_a_sum_whose_experts_can_be_told_apart():
    mine = work.Work(SHAPE, 3, 0)
    rows, counts = received(SHAPE, 3, 0)
    scaled, at = mine.scale(rows, counts), 0
    for expert, count in enumerate(counts.tolist()):
        assert torch.equal(scaled[at:at + count], rows[at:at + count] * 2.0 ** (expert % 4))
        at += count
    total = sum(mine.topk_weights[:, k:k + 1] * 2.0 ** (mine.topk_ids[:, k:k + 1] % 4) for k in range(SHAPE.top_k))
    out = (mine.tokens.float() * total).bfloat16()
    assert mine.wrong_combined(out) == 0
    assert mine.wrong_combined(mine.tokens) > 0  # as if all experts were the identity
    out[1, 1] *= 1.05
    assert mine.wrong_combined(out) == 1


# ---- runs


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """(the output of the command, the runs that it wrote, their file): ferry beside Gloo."""
    file = tmp_path_factory.mktemp("compare") / "runs.json"
    done = command(*COMMAND, "--with", "gloo", "--tokens", "6", "--rounds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())["runs"], file


NAMES = ["ferry", "ferry, C++ bench", "Gloo", "Gloo, malloc tuned"]


@pytest.mark.long
def test_all_programs_take_turns_and_every_result_is_verified(compared):
    _, runs, _ = compared
    assert [(run["case"], run["program"]) for run in runs] == [([6, 64, 2, 8], name) for name in NAMES]
    for run in runs:
        result, (tokens, hidden, ranks, _) = run["result"], run["case"]
        assert result["wrong"] == 0
        assert result["compared"] >= 3 * ranks * tokens * hidden  # two rows of each token, and the rows that came back
        for what in ("dispatch_us", "combine_us", "pair_us"):
            assert 0 < result[what]["min"] <= result[what]["median"] <= result[what]["p99"]


@pytest.mark.long
def test_the_table_shows_times_and_ratios_of_what_was_measured(compared):
    printed, runs, _ = compared
    heading, _, *lines, last = printed.strip().split("\n")
    assert heading == "6 tokens per rank, 2 ranks, hidden 64, top 2 of 8 experts, bf16; medians of 1 round"
    pair = {run["program"]: run["result"]["pair_us"]["median"] for run in runs}
    limit = runs[1]["result"]["limit_us"]["pair"]
    assert len(lines) == len(NAMES)
    for line, name in zip(lines, NAMES):
        assert line.startswith(name) and words.time_text(pair[name]) in line
        assert line.split()[-2:] == [f"{pair[name] / limit:.2f}", f"{pair[name] / pair['ferry']:.2f}"]
    apart = pair["ferry"] - pair[NAMES[1]]
    assert last == (f"From Python a pair takes {pair['ferry'] / pair[NAMES[1]]:.2f} of the C++ bench's time, "
                    f"{words.time_text(abs(apart))} {'more' if apart > 0 else 'less'}.")


@pytest.mark.long
def test_every_shape_gets_a_table_and_ratios_stay_within_a_round(compared):
    _, runs, _ = compared

    def other(run, factor, **names):
        pair = {"median": run["result"]["pair_us"]["median"] * factor}
        return {**run, **names, "result": {**run["result"], "pair_us": pair}}

    slower = [other(run, 10, round=1) for run in runs]  # all programs equally slower: no ratio changes
    larger = [other(run, 1, case=[1, *run["case"][1:]]) for run in runs]
    one, two = compare.text_of(runs), compare.text_of(runs + slower + larger)
    first, second = two.split("\n\n")
    assert first.startswith("6 tokens per rank") and first.split("\n")[0].endswith("medians of 2 rounds")
    assert second.startswith("1 token per rank")
    ratios = [[line.split()[-1] for line in text.split("\n")[2:6]] for text in (one, first, second)]
    assert ratios[0] == ratios[1] == ratios[2]


@pytest.mark.long
def test_what_is_written_can_be_drawn(compared, tmp_path):
    pytest.importorskip("matplotlib")
    from ferry import plot

    plot.draw([compared[2]], tmp_path / "ratios.svg")
    plot.draw([compared[2]], tmp_path / "time.svg", kind="time")
    for name in NAMES:
        assert all(f">{name}<" in (tmp_path / file).read_text() for file in ("ratios.svg", "time.svg"))


@pytest.mark.skipif(programs.why_not("mpi") is not None, reason=str(programs.why_not("mpi")))
def test_mpi_runs_and_is_verified():
    (mpi,) = programs.BASELINES["mpi"]
    result = run_once(programs.job_of(mpi, SHAPE, 2, seed=4))
    assert result["wrong"] == 0 and result["compared"] > 0


def test_an_operation_takes_from_the_first_begin_to_the_last_end():
    ranks = [{"dispatch": [[1000, 4000], [10_000, 11_000]], "combine": [[0, 500], [0, 500]],
              "batches": [[0, 8000]], "pairs_per_batch": 2, "compared": 5, "wrong": 0},
             {"dispatch": [[2000, 9000], [10_500, 12_000]], "combine": [[100, 700], [0, 500]],
              "batches": [[-2000, 6000]], "pairs_per_batch": 2, "compared": 6, "wrong": 2}]
    found = summary(ranks)
    assert found["dispatch_us"] == {"min": 2, "median": 5, "p99": 8}
    assert found["combine_us"]["median"] == pytest.approx(0.6)
    assert found["pair_us"]["median"] == 5
    assert (found["compared"], found["wrong"]) == (11, 2)


def test_iterations_follow_the_bytes_that_move():
    few, many = work.Shape(4096, 7168, 8, 256, 8), work.Shape(1, 128, 2, 16, 2)
    assert (compare.iterations_for(few), compare.iterations_for(many)) == (compare.FEWEST, compare.MOST)
    assert compare.iterations_for(work.Shape(16, 7168, 8, 256, 8)) == 2_000_000_000 // (4 * 8 * 16 * 8 * 7168)


# ---- faults


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_sees_tables_between_rounds_and_a_pipe_sees_none(terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    job = Job("shapes", [1], "any", [sys.executable, "-c", "print('{}')"])
    runs = measure([job], 3, show=lambda runs: f"{len(runs)} done")
    assert len(runs) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert re.findall(r"after (round \d) of 3:\n(\d) done", told.err) == [("round 1", "1"), ("round 2", "2")] * terminal
    assert ("left" in told.err) == terminal and bool(told.err) == terminal


def test_a_rank_that_fails_is_told_with_its_last_words():
    gloo = programs.BASELINES["gloo"][0]
    result = run_once(programs.job_of(gloo, work.Shape(1, 10**13, 2, 8, 2), 1, seed=1))
    assert re.match("(?s)exit code 1: .*memory", result["error"])


def test_settings_that_cannot_run_are_refused_before_anything_starts(capsys):
    for arguments, told in ((["--with", "gloo,shmem"], "--with: 'shmem' is none of gloo, mpi"),
                            (["--experts", "9"], "--experts 9: must be a multiple of the 2 ranks"),
                            (["--top-k", "9"], "--top-k 9: there are only 8 experts"),
                            (["--with", ""], "nothing to compare with")):
        assert main(["compare", *COMMAND, *arguments]) == f"ferry compare: {told}"
    for arguments, told in ((["--tokens", "4,0"], "argument --tokens: '0' is no number from 1 on"),
                            (["--rounds", "two"], "argument --rounds: 'two' is no number from 1 on")):
        with pytest.raises(SystemExit, match="2"):
            main(["compare", *COMMAND, *arguments])
        assert told in capsys.readouterr().err


def test_python_is_compared_with_the_c_bench_alone_where_nothing_else_is_wanted():
    assert compare.choose_programs("none") == (programs.ALWAYS, [])


def test_a_baseline_that_is_not_installed_is_left_out_with_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    chosen, left_out = compare.choose_programs("gloo,mpi")
    assert [program.name for program in chosen] == NAMES
    assert left_out == ["mpi is left out: mpi4py is not installed (python -m pip install mpi4py)"]
    with pytest.raises(programs.ProgramError, match="nothing to compare with; mpi is left out: mpi4py"):
        compare.choose_programs("mpi")


def test_without_torch_the_command_says_what_to_install():
    program = "import sys; sys.modules['torch'] = None\nfrom ferry.__main__ import main; sys.exit(main(['compare']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "ferry compare: torch is not installed (python -m pip install torch)\n"


def test_mpi_without_a_launcher_is_told(monkeypatch):
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    monkeypatch.setenv("PATH", "")
    assert programs.why_not("mpi") == "mpi4py is installed, but neither mpirun nor mpiexec is found"


def run_of(*flags_ns, **more):
    return {"section": "", "case": [], "program": "", "round": 0, "result": {"flags_ns": list(flags_ns), **more}}


def test_runs_count_where_the_cores_were_most_of_the_time():
    near, far, moved, unknown = run_of(25, 31), run_of(150, 160), run_of(25, 160), run_of()
    assert in_place(near, 26) and in_place(far, 140) and in_place(unknown, 26) and in_place(moved, 0)
    assert not in_place(far, 26) and not in_place(moved, 26) and not in_place(moved, 140)
    assert main_place([far, near, moved, run_of(27), unknown]) == ([near, run_of(27), unknown], [far, moved])
    assert main_place([unknown, unknown]) == ([unknown, unknown], [])


def test_a_run_knows_where_the_cores_were(monkeypatch):
    probed = iter([[28, 30], [140]])
    monkeypatch.setattr("ferry.bench.measure.flags_now_ns", lambda: next(probed))
    result = run_once(Job("", [], "", [sys.executable, "-c", "print('{\"flags_ns\": [31]}')"]))
    assert result["flags_ns"] == [28, 30, 31, 140]  # before the run, of the run, after it


def test_the_time_of_a_flag_is_measured():
    times = flags_now_ns()
    assert times and all(time >= 0 for time in times)


def test_predictions_are_compared_with_runs_of_their_place():
    def measured(us, flag_ns):
        times = {f"{what}_us": {"min": us, "median": 2 * us} for what in planned.WHAT}
        return {**run_of(flag_ns, **times), "section": "planned", "case": list(case), "program": "ferry", "round": us}

    case = (16, 7168, 2, 256, "uniform")
    near, far = {"host": {"flag_ns": 26}}, {"host": {"flag_ns": 140}}
    predictions = [{case: dict.fromkeys(planned.WHAT, us)} for us in (110, 300)]
    runs = [measured(103, 30), measured(100, 30), measured(130, 30), measured(200, 150)]
    text, errors = planned.report([near, far], predictions, runs)
    assert errors == [[pytest.approx(0.1)], [pytest.approx(0.5)]]
    assert "flag 26 ns: 1 of 1 shapes, median error 10.0 %" in text
    assert text.count("the second fastest run of a shape is 3.0 % above the fastest in the median, 3.0 % at most") == 1
    assert text.count("the second fastest run") == 1  # a shape with one run has no second fastest
    assert "| 110 µs | 100 µs | +10.0 % | +120.0 % | +120.0 % | +3.0 % | +3.0 % of 3 |" in text
    assert "| 300 µs | 200 µs | +50.0 % | +200.0 % | +200.0 % |  | +0.0 % of 1 |" in text


def test_predictions_are_measured_until_one_place_has_all(monkeypatch, capsys):
    near, far = {"host": {"flag_ns": 26}}, {"host": {"flag_ns": 140}}
    flags, ran = iter([150, 30, 30, 30]), []

    def measure_once(jobs, rounds, idle_wait_s):
        flag_ns = next(flags)
        ran.append(([job.case for job in jobs], flag_ns))
        return [{**run_of(flag_ns), "case": job.case} for job in jobs]

    monkeypatch.setattr(planned, "measure", measure_once)
    monkeypatch.setattr(planned, "flags_now_ns", lambda: [28, 30])
    options = argparse.Namespace(rounds=2, idle_wait=0)
    cases = [(16, 7168, 2, 256, "uniform"), (32, 4096, 2, 64, "uniform")]
    runs = planned.measure_cases([near, far], cases, options, lambda runs: f"{len(runs)} runs")
    assert [flag_ns for _, flag_ns in ran] == [150, 30, 30]  # the first round was at another place
    assert [run["round"] for run in runs] == [0, 0, 1, 1, 2, 2]
    assert capsys.readouterr().err == "2 runs\n4 runs\n6 runs\n"
