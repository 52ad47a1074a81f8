"""Owns the table of a comparison: medians over rounds, ratios within a round. Called by compare's command line."""

import statistics

from ..plot.results import by_case, limits_of, median_ratio, pair_times
from ..plot.words import plural, setting_of, time_text
from .programs import FERRY, NATIVE

HEAD = ["", "dispatch", "combine", "pair", "pair / limit", "pair / ferry's"]


def text(runs):
    """A table for each shape, with what Python itself costs below it."""
    return "\n\n".join(table_of(tokens, programs) for (tokens, *_), programs in by_case(runs).items())


def table_of(tokens, programs):
    limits, ferry = limits_of(programs), pair_times(programs[FERRY])
    lines = [HEAD]
    for program, rounds in programs.items():
        times = [time_text(statistics.median(result[f"{what}_us"]["median"] for result in rounds.values()))
                 for what in ("dispatch", "combine", "pair")]
        pairs = pair_times(rounds)
        lines.append([program, *times, f"{median_ratio(pairs, limits):.2f}", f"{median_ratio(pairs, ferry):.2f}"])
    widths = [max(map(len, column)) for column in zip(*lines)]
    rows = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    setting = setting_of(next(iter(programs[FERRY].values()))["options"])
    heading = ", ".join([f"{plural(tokens, 'token')} per rank", *setting.values()])
    count = len(ferry)
    native = median_ratio(ferry, pair_times(programs[NATIVE]))
    return "\n".join([f"{heading}; medians of {plural(count, 'round')}", *rows,
                      f"From Python a pair takes {native:.2f} of the C++ bench's time."])
