"""Draws the time of a pair against tokens, and for each setting the time of the same traffic with places known."""

from collections import defaultdict

from matplotlib.ticker import FuncFormatter, NullLocator

from . import style
from .results import ResultsError
from .words import split_setting, tick_text

KNOWN = "places known"
HEIGHT_IN, LABEL_GAP = 4.2, 0.06  # the gap between labels: part of the height of the axes


def drawing(results, title, note=None):
    """Returns the figure of all results, with a line for each program and setting."""
    if any(result.tokens < 1 for result in results):
        raise ResultsError("0 tokens have no place on a logarithmic axis")
    shared, lines = lines_of(results)
    room = 0.35 + 0.085 * max(map(len, [KNOWN, *lines]))
    subtitle = ", ".join(shared) + f"; {KNOWN}: the same rows moved by threads that know all places"
    title = title or "Time of a dispatch and its combine"
    picture, axes = style.figure(title, subtitle, HEIGHT_IN, 0.85, room, note=note)
    axes.set(xscale="log", yscale="log", xlabel="tokens per rank")
    ends, limits = [], {}
    for at, (label, points) in enumerate(lines.items()):
        color, marker = style.SERIES[at % len(style.SERIES)], style.MARKERS[at % len(style.MARKERS)]
        tokens = [point.tokens for point in points]
        axes.plot(tokens, [point.pair_us for point in points], color=color, marker=marker, markersize=4,
                  linewidth=1.8, label=label)
        ends.append((points[-1].pair_us, label, color))
        limit = tuple((point.tokens, point.limit_us) for point in points if point.limit_us)
        limits.setdefault(tuple(points[0].setting.items()), (limit, color))
    for limit, color in limits.values():
        if limit:
            color = style.INK if len(limits) == 1 else color
            axes.plot(*zip(*limit), color=color, linewidth=1.2, linestyle=(0, (4, 3)), label=KNOWN)
            ends.append((limit[-1][1], KNOWN, color))
    finish(axes, sorted({result.tokens for result in results}))
    label_ends(axes, ends)
    return picture


def lines_of(results):
    """Returns (the words that all results have in common, {label: its results by tokens})."""
    shared, apart = split_setting(results)
    several = len({result.program for result in results}) > 1
    lines = defaultdict(list)
    for result, words in zip(results, apart):
        lines[", ".join([result.program] * (several or not words) + words)].append(result)
    return shared, {label: sorted(line, key=lambda result: result.tokens) for label, line in lines.items()}


def finish(axes, tokens):
    """Sets ticks at the measured numbers of tokens, as far as they fit, and readable labels for times."""
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    shown = tokens if len(tokens) <= 14 else [count for count in tokens if count & (count - 1) == 0]
    axes.set_xticks(shown, [f"{count}" for count in shown])
    axes.set_xlim(tokens[0] / 1.15, tokens[-1] * 1.15)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: tick_text(us)))
    axes.tick_params(length=0)


def label_ends(axes, ends):
    """Writes the name of each line at its end. A name that would touch another is moved up."""
    below = float("-inf")
    for us, label, color in sorted(ends):
        height = axes.transAxes.inverted().transform(axes.transData.transform((1, us)))[1]
        below = max(height, below + LABEL_GAP)
        axes.text(1.02, below, label, color=color, transform=axes.transAxes, va="center")
