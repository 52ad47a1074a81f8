"""Turns the results of bench.py into the tables of docs/benchmarks.md and README.md. Every ratio is
taken within a round; what is shown is the median over rounds."""

import statistics
from collections import defaultdict

# What the first version promised: ferry over Open MPI a2av, and over the limit, at most.
GOALS = {(16, 7168, 2, 256): (0.28, 1.2), (16, 7168, 8, 256): (0.15, 1.4),
         (128, 7168, 8, 256): (0.25, 1.12), (128, 2048, 4, 128): (0.13, 1.25),
         (1024, 7168, 8, 256): (0.24, 1.1), (4096, 7168, 2, 256): (0.23, 1.1),
         (4096, 2048, 4, 128): (0.23, 1.1)}
DISTURBED = 0.06  # part of all processors that other programs used during a run

INTRODUCTION = """# Benchmarks

Written by `make bench`. {machine}

Times are medians over {rounds} of interleaved runs, each after waiting for an idle machine.
Absolute times move with the machine; ratios are taken within a round, and their median over rounds
is shown.{disturbed}
"""

SHAPES_TEXT = """
## A dispatch and its combine

Ranks are processes, bf16, {top_k} experts per token, uniform routing, identity experts,
expert-major rows. *pair*: one dispatch and one combine in a free-running loop. *limit*: the
unavoidable memory traffic of the same routing, measured in the same run by pinned threads of one
process that know every place beforehand: each token read and each of its rows written once, each
row read and each result written once. Every run of ferry is compared with its oracle, bit for bit.

"""

MPI_TEXT = """
## Against MPI collectives

The same tokens, routing and loops over {library} ([bench](../bench/mpi_bench.cc)), with ferry's
SIMD kernels and memory in huge pages. *a2av*: counts, rows sorted by expert, `MPI_Alltoallv`, a
local move to expert-major order, and back. *dedup*: one row per distinct rank, expanded and summed
by the receiver. Where ranks outnumber processors they yield while they wait, in MPI as in ferry. In
brackets: the round in which MPI did best against ferry.

"""

OVERHEAD_TEXT = """
## What a pair costs without rows

One token of 128 channels per rank, {top_k} experts of 256: nothing but the protocol.
"""

SKEW_TEXT = """
## Real skew

`--routing real` against uniform routing: hidden 7168, {top_k} experts of 256, processes. *busiest*:
rows of the busiest rank over the mean; *per 1000*: pair time for 1000 rows of that rank. Time may
grow as the rows of the busiest rank do, and no more.
"""

FEATURES_TEXT = """
## Wires, masks, shared experts

Against the same shape with wire `none` and nothing special, in the same round: times of dispatch,
combine and pair, and the rows that are sent. Expert outputs are bf16 in the window; combine's wires
are then encoded and decoded while they are read, which costs and saves nothing inside a host.
"""


# ---- numbers


def by_case(results, section):
    """{case: {program: {round: result}}} of the runs that succeeded."""
    cases = defaultdict(lambda: defaultdict(dict))
    for run in results["runs"]:
        if run["section"] == section and "error" not in run["result"]:
            cases[tuple(run["case"])][run["program"]][run["round"]] = run["result"]
    return cases


def pair_us(result):
    return result["pair_us"]["median"]


def limit_us(result):
    return result["limit_us"]["pair"]


def median_of(runs, value):
    return statistics.median(map(value, runs.values())) if runs else None


def ratios(tops, top_value, bottoms, bottom_value):
    """Of the rounds that have both."""
    return [top_value(tops[number]) / bottom_value(bottoms[number])
            for number in sorted(tops.keys() & bottoms.keys())]


def shapes(results):
    """A list of {shape, limit_us, ferry_us, dedup_us, a2av_us, ..._over_limit, over_...}: over_a2av
    is (median, largest)."""
    rows = []
    for shape, programs in by_case(results, "shapes").items():
        ferry = programs["ferry"]
        if not ferry:
            continue
        row = {"shape": shape, "limit_us": median_of(ferry, limit_us)}
        for program in ("ferry", "dedup", "a2av"):
            runs = programs[program]
            over_limit = ratios(runs, pair_us, ferry, limit_us)
            if over_limit:
                row[f"{program}_us"] = median_of(runs, pair_us)
                row[f"{program}_over_limit"] = statistics.median(over_limit)
                over = ratios(ferry, pair_us, runs, pair_us)
                row[f"over_{program}"] = (statistics.median(over), max(over))
        row["dispatch_us"] = median_of(ferry, lambda result: result["dispatch_us"]["median"])
        row["combine_us"] = median_of(ferry, lambda result: result["combine_us"]["median"])
        rows.append(row)
    return rows


# ---- text


SHAPE_HEAD = "tokens per rank, H, ranks, E"


def time_text(us):
    if us is None:
        return "-"
    value, unit = (us, "us") if us < 1000 else (us / 1000, "ms")
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def bytes_text(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def machine_text(results):
    machine = results["machine"]
    caches = [f"L{cache['level']} {bytes_text(cache['bytes'])}"
              + (f" for {cache['shared_by']} threads" if cache["shared_by"] > 1 else " each")
              for cache in machine["caches"] if cache["level"] > 1]
    threads = plural(len(machine["cpus"]), "hardware thread")
    return (f"The machine: {threads} of {machine['processor']}"
            f" ({plural(machine['cores'], 'core')},\n{', '.join(caches)},"
            f" {plural(machine['numa_domains'], 'NUMA domain')}), SIMD target {results['simd'][0]},"
            f" {bytes_text(machine['memory_bytes'])} of memory.")


def disturbed_text(results):
    parts = [run["result"].get("others", 0) for run in results["runs"]]
    disturbed = [part for part in parts if part > DISTURBED]
    if not disturbed:
        return ""
    return (f"\n\n**Other processes disturbed {len(disturbed)} of {len(parts)} runs**: they used up"
            f" to {max(disturbed):.0%} of the processors.")


def library_name(results):
    names = {run["result"].get("library") for run in results["runs"]} - {None}
    return names.pop() if names else None


def shape_text(shape):
    return ", ".join(map(str, shape))


def goal_text(row, which):
    return str(GOALS[row["shape"]][which]) if row["shape"] in GOALS else "-"


def limit_table(rows):
    lines = [[shape_text(row["shape"]), time_text(row["limit_us"]), time_text(row["dispatch_us"]),
              time_text(row["combine_us"]), time_text(row["ferry_us"]),
              f"{row['ferry_over_limit']:.2f}", goal_text(row, 1)] for row in rows]
    head = [SHAPE_HEAD, "limit", "dispatch", "combine", "pair", "pair / limit", "goal: at most"]
    return table(head, lines)


def mpi_table(rows):
    lines = []
    for row in rows:
        line = [shape_text(row["shape"]), time_text(row["ferry_us"])]
        for program in ("dedup", "a2av"):
            over = row.get(f"over_{program}")
            line.append(time_text(row.get(f"{program}_us")))
            line.append(f"{over[0]:.2f} ({over[1]:.2f})" if over else "failed")
        lines.append([*line, goal_text(row, 0)])
    head = [SHAPE_HEAD, "ferry", "dedup", "ferry / dedup", "a2av", "ferry / a2av", "goal: at most"]
    return table(head, lines)


def missed_text(rows):
    missed = []
    for row in rows:
        of_a2av, of_limit = GOALS.get(row["shape"], (float("inf"), float("inf")))
        if row["ferry_over_limit"] > of_limit:
            missed.append(f"{shape_text(row['shape'])} (limit)")
        if "over_a2av" in row and row["over_a2av"][0] > of_a2av:
            missed.append(f"{shape_text(row['shape'])} (a2av)")
    if not missed:
        return "Every goal measured here was met.\n"
    return "".join(f"* goal missed: {goal}\n" for goal in missed)


def overhead_table(results):
    cases, lines, before = by_case(results, "overhead"), [], {}
    for (ranks,), modes in sorted(cases.items()):
        line = [str(ranks)]
        for mode in ("processes", "threads"):
            us = median_of(modes[mode], pair_us)
            grown = f"{us / before[mode]:.1f}" if us and before.get(mode) else "-"
            line += [time_text(us), time_text(us / ranks if us else None), grown]
            before[mode] = us
        lines.append(line)
    head = ["ranks", "processes", "per rank", "over half the ranks", "threads", "per rank",
            "over half the ranks"]
    return table(head, lines)


def busiest_rows(result):
    return result["imbalance"] * result["rows"] / result["options"]["ranks"]


def skew_table(results):
    lines = []
    for (ranks, tokens), routings in by_case(results, "skew").items():
        uniform, real = routings["uniform"], routings["real"]
        rows_grow = ratios(real, busiest_rows, uniform, busiest_rows)
        time_grows = ratios(real, pair_us, uniform, pair_us)
        if not rows_grow:
            continue
        line = [str(ranks), str(tokens)]
        for runs in (uniform, real):
            line.append(f"{median_of(runs, lambda result: result['imbalance']):.2f}")
            line.append(time_text(median_of(runs, pair_us)))
            line.append(time_text(median_of(
                runs, lambda result: 1000 * pair_us(result) / busiest_rows(result))))
        line += [f"{statistics.median(rows_grow):.2f}", f"{statistics.median(time_grows):.2f}"]
        lines.append(line)
    each = ["busiest", "pair", "per 1000"]
    head = ["ranks", "tokens", *(f"uniform: {name}" for name in each),
            *(f"real: {name}" for name in each), "its rows grow", "time grows"]
    return table(head, lines)


def feature_table(results):
    lines = []
    for shape, programs in by_case(results, "features").items():
        plain = programs["none"]
        for program, runs in programs.items():
            if not ratios(runs, pair_us, plain, pair_us):
                continue
            line = [shape_text(shape), program, time_text(median_of(
                runs, lambda result: result["dispatch_us"]["median"]))]
            for value in (lambda result: result["dispatch_us"]["median"],
                          lambda result: result["combine_us"]["median"], pair_us,
                          lambda result: result["rows"]):
                line.append(f"{statistics.median(ratios(runs, value, plain, value)):.2f}")
            lines.append(line)
    head = [SHAPE_HEAD, "", "dispatch", "dispatch / none", "combine / none", "pair / none",
            "rows / none"]
    return table(head, lines)


def document(results):
    rounds = plural(1 + max(run["round"] for run in results["runs"]), "round")
    options = next(run["result"]["options"] for run in results["runs"]
                   if "options" in run["result"])
    text = INTRODUCTION.format(machine=machine_text(results), rounds=rounds,
                               disturbed=disturbed_text(results))
    library, rows = library_name(results), shapes(results)
    if rows:
        text += SHAPES_TEXT.format(top_k=options["top_k"]) + limit_table(rows)
        text += "\n![pair time over the limit](pictures/pair.svg)\n"
        if library:
            text += MPI_TEXT.format(library=library) + mpi_table(rows)
        text += f"\n{missed_text(rows)}"
    if by_case(results, "overhead"):
        text += OVERHEAD_TEXT.format(top_k=options["top_k"]) + "\n" + overhead_table(results)
    if by_case(results, "skew"):
        text += SKEW_TEXT.format(top_k=options["top_k"]) + "\n" + skew_table(results)
    if by_case(results, "features"):
        text += FEATURES_TEXT + "\n" + feature_table(results)
    return text


def readme_block(results):
    library = library_name(results)
    head = [SHAPE_HEAD, "limit", "ferry", "ferry / limit"]
    if library:
        head += [f"ferry / {library} dedup", f"ferry / {library} a2av"]
    lines = []
    for row in shapes(results):
        line = [shape_text(row["shape"]), time_text(row["limit_us"]), time_text(row["ferry_us"]),
                f"{row['ferry_over_limit']:.2f}"]
        for program in ("dedup", "a2av") if library else ():
            over = row.get(f"over_{program}")
            line.append(f"{over[0]:.2f}" if over else "failed")
        lines.append(line)
    return table(head, lines) + f"\n{machine_text(results)}\n"
