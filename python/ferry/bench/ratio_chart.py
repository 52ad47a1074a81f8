"""Draws ratios as bars: the time of a pair divided by that of the same traffic with places known. The programs of each
shape are one below the other."""

from . import style
from .results import ResultsError
from .words import plural, split_setting, three_digits

LINE_IN, BAR_IN, GROUP_GAP_IN = 0.19, 0.145, 0.14


def drawing(results, title, note=None):
    """Returns the figure of all results for which the time of the same traffic is known."""
    results = [result for result in results if result.over_limit]
    if not results:
        raise ResultsError("no result has a time with places known: one program must be ferry's bench")
    shared, apart = split_setting(results)
    groups = {}
    for result, words in zip(results, apart):
        heading = ", ".join([plural(result.tokens, "token") + " per rank", *words])
        groups.setdefault(heading, []).append(result)
    programs = list(dict.fromkeys(result.program for result in results))
    colors = {program: style.SERIES[at % len(style.SERIES)] for at, program in enumerate(programs)}
    height = LINE_IN * (len(results) + len(groups)) + GROUP_GAP_IN * len(groups)
    room = 0.4 + 0.072 * max(map(len, programs))
    subtitle = ", ".join([*shared, "over the same rows moved by threads that know all places; shorter is better"])
    picture, axes = style.figure(title or "Time of a dispatch and its combine, over the same traffic", subtitle,
                                 height + 1.2, room, 0.7, bottom_in=0.4, top_in=0.8, note=note)
    axes.set(ylim=(height, 0), xlim=(0, max(result.over_limit for result in results)))
    top = 0
    for heading, group in groups.items():
        draw_group(axes, heading, group, top, colors)
        top += LINE_IN * (len(group) + 1) + GROUP_GAP_IN
    axes.annotate("places known", (1, 0), xycoords=("data", "axes fraction"), xytext=(0, -2),
                  textcoords="offset points", ha="center", va="top", color=style.QUIET)
    axes.set_axis_off()
    return picture


def draw_group(axes, heading, group, top, colors):
    beside = {"textcoords": "offset points", "va": "center_baseline"}
    axes.annotate(heading, (0, top + LINE_IN / 2), xytext=(0, 0), color=style.QUIET, **beside)
    for at, result in enumerate(group, 1):
        middle = top + (at + 0.5) * LINE_IN
        weight = "bold" if result.program.startswith("ferry") else "normal"
        axes.barh(middle, result.over_limit, height=BAR_IN, color=colors[result.program])
        axes.annotate(result.program, (0, middle), xytext=(-6, 0), ha="right", fontweight=weight, **beside)
        axes.annotate(three_digits(result.over_limit), (result.over_limit, middle), xytext=(5, 0), fontweight=weight,
                      **beside)
    bars = (top + LINE_IN, top + LINE_IN * (len(group) + 1))
    axes.plot((1, 1), bars, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
