"""The page of `make bench`: ratios within a round, goals, programs that failed, runs that other programs disturbed."""

import report
import suite
from ferry.bench.results import medians

SHAPE = [16, 7168, 2, 256]


def result(pair_us, **more):
    parts = {"dispatch": 0.4, "combine": 0.5, "pair": 1}
    times = {f"{what}_us": {"median": pair_us * part} for what, part in parts.items()}
    return {**times, "others": 0, **more}


def ferry(pair_us, limit_us, **more):
    options = {"ranks": 2, "top_k": 8}
    return result(pair_us, options=options, limit_us={"pair": limit_us}, rows=100, imbalance=1.5, **more)


def results(*runs):
    machine = {"processor": "P", "cores": 2, "numa_domains": 1, "cpus": [0, 1], "memory_bytes": 2**30,
               "caches": [{"level": 3, "bytes": 2**20, "shared_by": 2}]}
    names = ("section", "case", "program", "round", "result")
    return {"machine": machine, "simd": ["AVX2"], "runs": [dict(zip(names, run)) for run in runs]}


def test_ratios_stay_within_a_round_and_a_missed_goal_is_told():
    library = {"library": "Open MPI v4"}
    found = results(("shapes", SHAPE, "ferry", 0, ferry(130, 100)),
                    ("shapes", SHAPE, "a2av", 0, result(260, **library)),
                    ("shapes", SHAPE, "ferry", 1, ferry(2600, 2000, others=0.5)),
                    ("shapes", SHAPE, "a2av", 1, result(10_400, **library)),
                    ("shapes", SHAPE, "dedup", 0, {"error": "exit code 1"}))
    page = report.document(found)
    assert "| 16, 7168, 2, 256 | 1.05 ms | 546 µs | 682 µs | 1.36 ms | 1.30 | 1.2 |" in page
    assert "| 1.36 ms | - | failed | 5.33 ms | 0.38 (0.50) | 0.28 |" in page
    assert "* goal missed: 16, 7168, 2, 256 (places known)\n* goal missed: 16, 7168, 2, 256 (a2av)\n" in page
    assert "disturbed 1 of 5 runs**: they used up to 50%" in page
    assert "memory of this machine changed its speed**: the same traffic, places known, took up to 20.0 times" in page
    assert "Real skew" not in page


def test_shapes_come_in_the_order_of_their_goals_and_only_a_program_that_ran_nowhere_failed():
    other = [16, 7168, 8, 256]
    found = results(("shapes", other, "ferry", 0, ferry(130, 100)),
                    ("shapes", other, "a2av", 1, result(260, library="Open MPI v4")),
                    ("shapes", SHAPE, "ferry", 0, ferry(130, 100)))
    lines = [line for line in report.readme_block(found).splitlines() if line.startswith("| 16, ")]
    assert [line.split(" | ")[0] for line in lines] == ["| 16, 7168, 2, 256", "| 16, 7168, 8, 256"]
    assert lines[0].endswith("| failed | failed |") and lines[1].endswith("| failed | - |")


def test_collectives_have_a_table_for_each_program_that_they_are_compared_with():
    def timed(rival, *times):
        both = dict(zip(("ferry", rival), times))
        return {"times": [["barrier", "", {"ferry": 1, rival: 4}], ["all_reduce", 4096, both]]}

    found = results(("collectives", [2], "Gloo", 0, timed("Gloo", 10, 100)),
                    ("collectives", [2], "Gloo", 1, timed("Gloo", 30, 150)),
                    ("collectives", [2], "Open MPI", 0, {"error": "exit code 1"}))
    page = report.document(found)
    assert "## Collectives against Gloo" in page and "Open MPI" not in page
    assert "| all_reduce | 4 KiB | 20.0 µs | 125 µs | 0.15 |" in page
    assert "| barrier |  | 1.00 µs | 4.00 µs | 0.25 |" in page


def test_sections_have_a_table_each():
    found = results(("overhead", [2], "threads", 0, ferry(10, 1)), ("overhead", [4], "threads", 0, ferry(30, 1)),
                    ("skew", [2, 128], "uniform", 0, ferry(10, 1)), ("skew", [2, 128], "real", 0, ferry(25, 1)),
                    ("features", SHAPE, "none", 0, ferry(10, 1)), ("features", SHAPE, "wire fp8", 0, ferry(8, 1)))
    page = report.document(found)
    assert "changed its speed" not in page
    assert "| 4 | - | - | - | 30.0 µs | 7.50 µs | 3.0 |" in page
    assert "| 2 | 128 | 1.50 | 10.0 µs | 133 µs | 1.50 | 25.0 µs | 333 µs | 1.00 | 2.50 |" in page
    assert "| 16, 7168, 2, 256 | wire fp8 | 3.20 µs | 0.80 | 0.80 | 0.80 | 1.00 |" in page


def test_runs_with_the_cores_elsewhere_are_counted_and_not_shown():
    runs = results(("shapes", SHAPE, "ferry", 0, ferry(130, 100, flags_ns=[28, 29])),
                   ("shapes", SHAPE, "ferry", 1, ferry(200, 100, flags_ns=[150, 140])),
                   ("shapes", SHAPE, "ferry", 2, ferry(132, 100, flags_ns=[29, 31])))
    found = {**runs, **suite.steady(runs["runs"])}
    page = report.document(found)
    assert "took 29 ns from one core to the next. 1 of 3 runs, in which it took\nanother time (up to 150 ns)" in page
    assert "| 131 µs | 1.31 |" in page
    assert "A flag took 29 ns" in report.readme_block(found)
    assert "were moved" not in report.document({**found, "elsewhere": []})


def test_a_shape_that_only_others_ran_has_no_point():
    runs = results(("shapes", SHAPE, "ferry", 0, ferry(130, 100)),
                   ("shapes", [4096, 7168, 2, 256], "a2av", 0, result(9)))
    assert [one.tokens for one in medians(runs["runs"])] == [16]


def test_only_the_block_of_a_readme_is_replaced(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nb\n")
    suite.replace_block(readme, "new\n")
    assert readme.read_text() == "a\n<!-- bench:begin -->\nnew\n<!-- bench:end -->\nb\n"
