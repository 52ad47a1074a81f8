"""The words of pictures and tables: descriptions of settings, and times in readable units."""

from typing import Dict, List, Tuple


def plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


# Options that differ between measurements: the words for each, and the value that is not shown.
SETTING = {"ranks": (lambda options: plural(options["ranks"], "rank"), None),
           "hidden": ("hidden {hidden}".format_map, None),
           "experts": ("top {top_k} of {experts} experts".format_map, None),
           "dtype": ("{dtype}".format_map, None),
           "mode": ("{mode}".format_map, "processes"),
           "workers": (lambda options: plural(options["workers"], "worker"), 1),
           "layout": ("{layout}".format_map, "expert_major"),
           "wire": ("wire {wire}".format_map, "none"),
           "combine_wire": ("combine wire {combine_wire}".format_map, "none"),
           "routing": ("routing {routing}".format_map, "uniform"),
           "mask_fraction": ("{mask_fraction:.0%} masked".format_map, 0),
           "shared_experts": (lambda options: plural(options["shared_experts"], "shared expert"), 0)}


def setting_of(options) -> Dict[str, str]:
    """Returns {name: words} for the options of a measurement; options with the usual value are omitted."""
    return {name: words(options) for name, (words, silent) in SETTING.items() if options.get(name, silent) != silent}


def split_setting(results) -> Tuple[List[str], List[List[str]]]:
    """Returns (the words that all results have in common, for each result the words that differ), for titles and
    labels."""
    names = list(dict.fromkeys(name for result in results for name in result.setting))
    apart = [name for name in names if len({result.setting.get(name) for result in results}) > 1]
    shared = [results[0].setting[name] for name in names if name not in apart]
    return shared, [[result.setting[name] for name in apart if name in result.setting] for result in results]


def in_unit(us) -> Tuple[float, str]:
    for unit in ("µs", "ms"):
        if us < 999.5:
            return us, unit
        us /= 1000
    return us, "s"


def three_digits(value):
    """Returns the value as text with three digits or more: 1.25, 12.5, 125, 1250."""
    return f"{value:.{max(0, 3 - len(str(int(value))))}f}"


def time_text(us):
    """Returns microseconds as text: 12345 gives "12.3 ms"."""
    value, unit = in_unit(us)
    return f"{three_digits(value)} {unit}"


def tick_text(us):
    """Returns microseconds as a label of an axis, where times are round: 100000 gives "100 ms"."""
    value, unit = in_unit(us)
    return f"{value:g} {unit}" if us else "0"


def aligned(lines) -> List[str]:
    """Returns the rows of a table for a terminal, with the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]


def markdown(lines) -> str:
    """Returns a table in Markdown. The first of `lines` is its head."""
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])
