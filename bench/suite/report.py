"""Owns the page that `make bench` writes. Every ratio is taken within a round, and the page shows the median over
rounds."""

import statistics
from collections import defaultdict

from ferry.bench.measure import disturbed_text, speeds_text
from ferry.bench.results import by_case, limits_of, median, median_ratio, ratios, times_of
from ferry.bench.words import markdown, plural, time_text

# The goals of the first version, as the largest ratios of ferry's pair: to Open MPI's a2av, and to the same traffic
# with places known.
GOALS = {(16, 7168, 2, 256): (0.28, 1.2), (16, 7168, 8, 256): (0.15, 1.4),
         (128, 7168, 8, 256): (0.25, 1.12), (128, 2048, 4, 128): (0.13, 1.25),
         (1024, 7168, 8, 256): (0.24, 1.1), (4096, 7168, 2, 256): (0.23, 1.1),
         (4096, 2048, 4, 128): (0.23, 1.1)}
MPI = ("dedup", "a2av")
SHAPE_HEAD = "tokens per rank, H, ranks, E"

INTRODUCTION = """# Benchmarks

Written by `make bench`. {machine}

Times are medians over {rounds} of interleaved runs, each after waiting for an idle machine.
Absolute times move with the machine; ratios are taken within a round, and their median over rounds
is shown.{places}{disturbed}{speeds}
"""

SHAPES_TEXT = """
## A dispatch and its combine

Ranks are processes, bf16, {top_k} experts per token, uniform routing, identity experts,
expert-major rows. *pair*: one dispatch and one combine in a free-running loop. *places known*: the
same traffic, measured in the same run by pinned threads of one process that know every place
beforehand (`limit_us` in JSON). Each token is read and each of its rows written once, each row read
and each result written once. It is a yardstick and no bound: ferry's own way through memory can be
the better one. Every run of ferry is compared with its oracle, bit for bit.

"""

MPI_TEXT = """
## Against MPI collectives

The programs over {library} ([bench](../bench/mpi_bench.cc)) have the same tokens, routing and loops
as ferry, and its SIMD kernels and memory in huge pages. *a2av*: counts, rows sorted by expert, `MPI_Alltoallv`, a
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
are then encoded and decoded while they are read, which takes time and saves no bytes inside a host.

"""

COLLECTIVES_TEXT = """
## Collectives against {rival}

{ranks} ranks, processes, float32; {how}. A time is that of the slowest rank.

"""
HOW = {"Gloo": "through torch.distributed ([torch_backend](torch_backend.md)), with its Python in both times",
       "Open MPI": "in C++; a rank writes the data that it sends before each call, and the time has both"}


def cases_of(results, section):
    return by_case(results["runs"], section, name=lambda program, result: program)


def fixed(value):
    return "failed" if value is None else f"{value:.2f}"


def time_or_dash(us):
    return "-" if us is None else time_text(us)


def shape_text(shape):
    return ", ".join(map(str, shape))


def goal_text(shape, which):
    return str(GOALS[shape][which]) if shape in GOALS else "-"


def bytes_text(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024


def machine_text(results):
    machine = results["machine"]
    caches = [f"L{cache['level']} {bytes_text(cache['bytes'])}"
              + (f" for {cache['shared_by']} threads" if cache["shared_by"] > 1 else " each")
              for cache in machine["caches"] if cache["level"] > 1]
    threads = plural(len(machine["cpus"]), "hardware thread")
    return (f"The machine: {threads} of {machine['processor']} ({plural(machine['cores'], 'core')},\n"
            f"{', '.join(caches)}, {plural(machine['numa_domains'], 'NUMA domain')}), SIMD target "
            f"{results['simd'][0]}, {bytes_text(machine['memory_bytes'])} of memory.")


def library_name(results):
    return next((run["result"]["library"] for run in results["runs"] if "library" in run["result"]), None)


def shapes(results):
    """[(shape, programs)] of the shapes that ferry ran, those with goals in their order."""
    order = {shape: number for number, shape in enumerate(GOALS)}
    found = [(shape, programs) for shape, programs in cases_of(results, "shapes").items() if programs.get("ferry")]
    return sorted(found, key=lambda case: order.get(case[0], len(order)))


def over_limit(programs):
    return median_ratio(times_of(programs["ferry"]), limits_of(programs))


def over(programs, rival):
    """Ratios of ferry's pair over the rival's."""
    return ratios(times_of(programs["ferry"]), times_of(programs.get(rival, {})))


def over_text(programs, rival, worst=False):
    """The median ratio, and the worst in brackets. A rival that ran, but in no round that ferry has too, has none."""
    found = over(programs, rival)
    if not found:
        return "-" if programs.get(rival) else "failed"
    return fixed(statistics.median(found)) + (f" ({fixed(max(found))})" if worst else "")


def limit_table(cases):
    lines = [[SHAPE_HEAD, "places known", "dispatch", "combine", "pair", "pair / places known", "goal: at most"]]
    for shape, programs in cases:
        times = [median(times_of(programs["ferry"], what)) for what in ("dispatch", "combine", "pair")]
        lines.append([shape_text(shape), *map(time_or_dash, [median(limits_of(programs)), *times]),
                      fixed(over_limit(programs)), goal_text(shape, 1)])
    return markdown(lines)


def mpi_table(cases):
    lines = [[SHAPE_HEAD, "ferry", "dedup", "ferry / dedup", "a2av", "ferry / a2av", "goal: at most"]]
    for shape, programs in cases:
        line = [shape_text(shape), time_text(median(times_of(programs["ferry"])))]
        for rival in MPI:
            line += [time_or_dash(median(times_of(programs.get(rival, {})))), over_text(programs, rival, worst=True)]
        lines.append([*line, goal_text(shape, 0)])
    return markdown(lines)


def missed_text(cases):
    missed = []
    for shape, programs in cases:
        of_a2av, of_limit = GOALS.get(shape, (float("inf"), float("inf")))
        a2av = over(programs, "a2av")
        if over_limit(programs) > of_limit:
            missed.append(f"* goal missed: {shape_text(shape)} (places known)\n")
        if a2av and statistics.median(a2av) > of_a2av:
            missed.append(f"* goal missed: {shape_text(shape)} (a2av)\n")
    return "".join(missed) or "Every goal measured here was met.\n"


def overhead_table(cases):
    each, before = ["per rank", "over half the ranks"], {}
    lines = [["ranks", "processes", *each, "threads", *each]]
    for (ranks,), modes in sorted(cases.items()):
        line = [str(ranks)]
        for mode in ("processes", "threads"):
            us = median(times_of(modes[mode]))
            line += [time_or_dash(us), time_or_dash(us and us / ranks),
                     f"{us / before[mode]:.1f}" if us and before.get(mode) else "-"]
            before[mode] = us
        lines.append(line)
    return markdown(lines)


def busiest_rows(rounds):
    """Rows of the busiest rank, of each round."""
    return {number: result["imbalance"] * result["rows"] / result["options"]["ranks"]
            for number, result in rounds.items()}


def skew_table(cases):
    each = ["busiest", "pair", "per 1000"]
    lines = [["ranks", "tokens", *(f"uniform: {name}" for name in each), *(f"real: {name}" for name in each),
              "its rows grow", "time grows"]]
    for (ranks, tokens), routings in cases.items():
        uniform, real = routings["uniform"], routings["real"]
        rows_grow = median_ratio(busiest_rows(real), busiest_rows(uniform))
        if rows_grow is None:
            continue
        line = [str(ranks), str(tokens)]
        for rounds in (uniform, real):
            line += [fixed(median({number: result["imbalance"] for number, result in rounds.items()})),
                     time_text(median(times_of(rounds))),
                     time_text(1000 * median_ratio(times_of(rounds), busiest_rows(rounds)))]
        lines.append([*line, fixed(rows_grow), fixed(median_ratio(times_of(real), times_of(uniform)))])
    return markdown(lines)


def feature_table(cases):
    whats = ("dispatch", "combine", "pair")
    lines = [[SHAPE_HEAD, "", "dispatch", *(f"{what} / none" for what in (*whats, "rows"))]]
    for shape, programs in cases.items():
        plain = programs["none"]
        for program, rounds in programs.items():
            if not rounds.keys() & plain.keys():
                continue
            grown = [median_ratio(times_of(rounds, what), times_of(plain, what)) for what in whats]
            rows = median_ratio(*({number: result["rows"] for number, result in one.items()}
                                  for one in (rounds, plain)))
            lines.append([shape_text(shape), program, time_text(median(times_of(rounds, "dispatch"))),
                          *map(fixed, [*grown, rows])])
    return markdown(lines)


def size_text(size):
    return bytes_text(size) if isinstance(size, int) and size else str(size or "")


def collectives_text(cases):
    """A table for each program that ferry's collectives are compared with."""
    text = ""
    for (ranks,), rivals in cases.items():
        for rival, rounds in rivals.items():
            times = {program: defaultdict(dict) for program in ("ferry", rival)}
            for number, result in rounds.items():
                for call, size, by_program in result["times"]:
                    for program, us in by_program.items():
                        times[program][call, size][number] = us
            lines = [["call", "size", "ferry", rival, f"ferry / {rival}"]]
            lines += [[call, size_text(size), time_text(median(took)), time_text(median(times[rival][call, size])),
                       fixed(median_ratio(took, times[rival][call, size]))]
                      for (call, size), took in times["ferry"].items()]
            text += COLLECTIVES_TEXT.format(rival=rival, ranks=ranks, how=HOW[rival]) + markdown(lines)
    return text


def flags_ns_of(runs):
    return [flag for run in runs for flag in run["result"].get("flags_ns", [])]


def place_text(results):
    """Where the cores were (places.py); empty where no run says it."""
    flags_ns = flags_ns_of(results["runs"])
    return f"A flag took {statistics.median(flags_ns):.0f} ns from one core to the next." if flags_ns else ""


def moved_text(results):
    """A paragraph, empty where the cores stayed on their caches."""
    apart = results.get("elsewhere")
    if not apart:
        return ""
    runs = len(apart) + len(results["runs"])
    return ("\n\n**The time of a flag changed**, as when a hypervisor moves cores from one last-level cache to two.\n"
            f"{place_text(results)} {len(apart)} of {runs} runs, in which it took\n"
            f"another time (up to {max(flags_ns_of(apart)):.0f} ns), are not shown.")


def document(results):
    rounds = plural(1 + max(run["round"] for run in results["runs"]), "round")
    options = next((run["result"]["options"] for run in results["runs"] if "options" in run["result"]), {})
    text = INTRODUCTION.format(machine=machine_text(results), rounds=rounds, places=moved_text(results),
                               disturbed=disturbed_text(results["runs"]), speeds=speeds_text(results["runs"]))
    library, cases = library_name(results), shapes(results)
    if cases:
        text += SHAPES_TEXT.format(**options) + limit_table(cases)
        text += "\n![pair time over the same traffic with places known](pictures/pair.svg)\n"
        text += MPI_TEXT.format(library=library) + mpi_table(cases) if library else ""
        text += f"\n{missed_text(cases)}"
    for section, words, table in (("overhead", OVERHEAD_TEXT, overhead_table), ("skew", SKEW_TEXT, skew_table),
                                  ("features", FEATURES_TEXT, feature_table)):
        cases = cases_of(results, section)
        text += words.format(**options) + table(cases) if cases else ""
    return text + collectives_text(cases_of(results, "collectives"))


def readme_block(results):
    library = library_name(results)
    rivals = MPI if library else ()
    lines = [[SHAPE_HEAD, "places known", "ferry", "ferry / places known",
              *(f"ferry / {library} {rival}" for rival in rivals)]]
    for shape, programs in shapes(results):
        lines.append([shape_text(shape), time_text(median(limits_of(programs))),
                      time_text(median(times_of(programs["ferry"]))), fixed(over_limit(programs)),
                      *(over_text(programs, rival) for rival in rivals)])
    return f"{markdown(lines)}\n{machine_text(results)} {place_text(results)}\n"
