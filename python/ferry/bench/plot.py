"""Pictures of measurements: `ferry plot results.json ... -o out.svg`, ferry.plot.draw in Python.

The files are results of `ferry bench --json` or `--trace`, `make bench` and `ferry compare --json`. Needs
matplotlib (`pip install ferry-ep[plot]`). The command line calls add_arguments() and run().
"""

from .results import ResultsError, read

KINDS = {"points": "time", "runs": "ratios", "trace": "timeline"}
NEEDED = "python -m pip install matplotlib"


def draw(files, out, kind=None, title=None, note=None):
    """Writes `out`, an svg or a png, from one or several files of results, or one trace.

    kind is "time" (the time of a pair against tokens, and that of the same traffic with places known), "ratios" (bars
    of the times over the time of the same traffic) or "timeline" (of the ranks, from a trace). None chooses time for
    results of ferry's bench, and ratios where programs were compared. note is a line below the picture, such as the
    date and the machine. Raises ResultsError with the name of a file that cannot be drawn, and ImportError without
    matplotlib.
    """
    contents = [read(file) for file in files]
    kind = kind or KINDS[contents[0][0]]
    if kind not in KINDS.values():
        raise ResultsError(f"'{kind}' is no kind of picture: time, ratios or timeline")
    for file, (form, _) in zip(files, contents):
        if (form == "trace") != (kind == "timeline"):
            wanted = "a trace of ferry bench --trace" if kind == "timeline" else "results of ferry bench --json"
            raise ResultsError(f"{file}: a picture of kind '{kind}' needs {wanted}")
    if kind == "timeline" and len(files) > 1:
        raise ResultsError(f"{files[1]}: a timeline shows one trace")
    # Imported here, so that the files are read, and their faults found, without matplotlib.
    from . import ratio_chart, style, time_chart, timeline_chart
    chart = {"time": time_chart, "ratios": ratio_chart, "timeline": timeline_chart}[kind]
    with style.look():
        picture = chart.drawing([item for _, items in contents for item in items], title, note)
        style.save(picture, out, title or f"ferry: {kind}")


def add_arguments(parser):
    parser.add_argument("files", nargs="+", metavar="results.json",
                        help="of ferry bench --json or --trace, make bench, or ferry compare --json")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="out.svg or out.png")
    parser.add_argument("--kind", choices=sorted(KINDS.values()),
                        help="default: time for ferry's bench, ratios for comparisons, timeline for a trace")
    parser.add_argument("--title", help="of the picture")
    parser.add_argument("--note", help="a line below the picture, such as when and where it was measured")


def run(options):
    try:
        draw(options.files, options.out, options.kind, options.title, options.note)
    except ResultsError as error:
        return f"ferry plot: {error}"
    except ImportError as error:
        return f"ferry plot: {error}; pictures need matplotlib: {NEEDED}"
    return 0
