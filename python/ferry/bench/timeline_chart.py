"""Draws the operations and phases of each rank during one exchange of a trace, the exchange of median length."""

from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from . import style
from .words import tick_text, time_text

RANK_IN, CROWDED_RANK_IN, CROWDED = 0.3, 0.17, 16
# Rows move in the strong colours; ranks wait for one another in the pale ones; grey is other work.
PHASES = {"count": "#a8b0ba", "counts": "#c5dff0", "place": "#6e7681", "send": "#0072b2", "receive": "#7fb8d8",
          "publish": "#d8c7a0", "outputs": "#fbe0a8", "sums": "#f5d6c6", "reduce": "#e69f00"}
OTHER_PHASE = "#cc79a7"


def drawing(spans, title, note=None):
    """Returns the figure for the spans of one trace."""
    exchange, count = median_exchange(spans)
    spans = [span for span in spans if span.exchange == exchange]
    begin, end = min(span.begin_us for span in spans), max(span.end_us for span in spans)
    ranks = sorted({span.rank for span in spans})
    subtitle = f"exchange {exchange} of {count}, the one of median length: {time_text(end - begin)}"
    height = len(ranks) * (RANK_IN if len(ranks) <= CROWDED else CROWDED_RANK_IN)
    picture, axes = style.figure(title or "What each rank did during one exchange", subtitle, height + 1.7, 0.8, 1.0,
                                 top_in=1.15, note=note)
    for row, rank in enumerate(ranks):
        own = [span for span in spans if span.rank == rank]
        for span in own:
            if span.phase:
                axes.barh(row, span.end_us - span.begin_us, left=span.begin_us - begin, height=0.66,
                          color=PHASES.get(span.phase, OTHER_PHASE))
        waited = sum(sum(span.wait_us) for span in own)
        write_wait(axes, row, time_text(sum(sum(span.wait_us) for span in own)))
    write_wait(axes, -1, "waited")
    axes.set(ylim=(len(ranks) - 0.4, -0.6), xlim=(0, end - begin), xlabel="time since the first rank began")
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda us, _: tick_text(us)))
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    add_legend(axes, spans)
    return picture


def write_wait(axes, row, text):
    """Writes the text about a wait in a column to the right of the bars."""
    axes.annotate(text, (1, row), xycoords=("axes fraction", "data"), xytext=(56, 0), textcoords="offset points",
                  va="center_baseline", ha="right", color=style.QUIET, annotation_clip=False)


def add_legend(axes, spans):
    """Adds the legend, in which each operation is followed by its phases."""
    handles = []
    for operation in dict.fromkeys(span.operation for span in spans):
        handles.append(Patch(visible=False, label=f"{operation}:"))
        phases = dict.fromkeys(span.phase for span in spans if span.operation == operation and span.phase)
        handles += [Patch(color=PHASES.get(phase, OTHER_PHASE), label=phase) for phase in phases]
    height = axes.figure.get_figheight()
    axes.figure.legend(handles=handles, loc="upper left", ncols=len(handles), borderaxespad=0, borderpad=0,
                       bbox_to_anchor=(0.06 / style.WIDTH_IN, 1 - 0.72 / height), handlelength=0.9,
                       handletextpad=0.35, columnspacing=0.8)


def median_exchange(spans):
    """Returns (the number of the exchange of median length, the number of exchanges)."""
    times = {}
    for span in spans:
        first, last = times.get(span.exchange, (span.begin_us, span.end_us))
        times[span.exchange] = min(first, span.begin_us), max(last, span.end_us)
    ordered = sorted(times, key=lambda exchange: times[exchange][1] - times[exchange][0])
    return ordered[len(ordered) // 2], len(ordered)
