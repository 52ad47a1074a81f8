"""Reads the files that pictures are made of, which `ferry bench --json` and `--trace`, `make bench` and `ferry compare`
write. A fault in a file raises a ResultsError with the name of the file."""

import json
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from .words import setting_of


class ResultsError(ValueError):
    """A file cannot be drawn."""


@dataclass(frozen=True)
class Result:
    """The result of one program at one shape. Times are medians over the rounds of a file, in microseconds. The limit
    is the time of the same traffic with places known, which ferry's bench measures."""

    program: str
    setting: Dict[str, str]  # all of the shape but the tokens: {"ranks": "8 ranks", ...}
    tokens: int              # per rank
    pair_us: float
    limit_us: Optional[float]    # the limit of the same shape, measured by any program
    over_limit: Optional[float]  # pair over limit, taken within a round


@dataclass(frozen=True)
class Span:
    """An operation or a phase of one rank, with its time in microseconds since the trace began."""

    rank: int
    operation: str  # "dispatch" or "combine"
    exchange: int
    phase: str      # "" for the whole operation
    begin_us: float
    end_us: float
    wait_us: Tuple[float, ...] = ()  # the wait for each rank in a whole operation


def read(path) -> Tuple[str, list]:
    """Reads a file and returns ("points" | "runs", [Result]) or ("trace", [Span]). If the file is output that ends in
    JSON, its last line is read."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    content = parse(path, text)
    try:
        if "traceEvents" in content:
            return "trace", spans(content["traceEvents"])
        if "runs" in content:
            return "runs", medians(content["runs"])
        return "points", points(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ResultsError(f"{path}: neither results nor a trace of ferry ({type(error).__name__}: {error})") from None


def parse(path, text) -> dict:
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            content = json.loads(part)
        except json.JSONDecodeError as error:
            fault = f"line {error.lineno}, column {error.colno}: {error.msg}"
            continue
        except RecursionError:
            fault = "it is nested too deep"
            continue
        if isinstance(content, dict):
            return content
        fault = f"a {type(content).__name__}, not an object"
    raise ResultsError(f"{path}: not JSON of ferry: {fault}")


def points(content) -> List[Result]:
    """Returns the points of `ferry bench --json`: one point, or those of a sweep."""
    setting = setting_of(content["options"])
    return [Result("ferry", setting, point["tokens"], point["pair_us"]["median"], point["limit_us"]["pair"],
                   point["limit_ratio"]) for point in content.get("points", [content])]


def program_name(program, result) -> str:
    """Returns the name of a program in pictures. `make bench` runs several programs over one library, so it has both:
    "Open MPI v4.1.4" and "dedup" give "Open MPI, dedup"."""
    library = result.get("library")
    return f"{library.rpartition(' ')[0] or library}, {program}" if library else program


def by_case(runs, section="shapes", name=program_name) -> Dict[tuple, Dict[str, dict]]:
    """Returns {case: {program: {round: result}}} of the runs of a section that succeeded. Cases of "shapes" are
    (tokens, hidden, ranks, experts)."""
    cases = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        if run["section"] == section and "error" not in run["result"]:
            cases[tuple(run["case"])][name(run["program"], run["result"])][run["round"]] = run["result"]
    return cases


def times_of(rounds, what="pair") -> Dict[int, float]:
    """Returns the median of "dispatch", "combine" or "pair" of each round, in microseconds."""
    return {number: result[f"{what}_us"]["median"] for number, result in rounds.items()}


def limits_of(programs) -> Dict[int, float]:
    """Returns the limit of each round, measured by any program."""
    return {number: result["limit_us"]["pair"] for rounds in programs.values()
            for number, result in rounds.items() if "limit_us" in result}


def median(values) -> Optional[float]:
    """Returns the median of values over rounds, or None without values."""
    return statistics.median(values.values()) if values else None


def ratios(tops, bottoms) -> List[float]:
    """Returns the ratios of tops to bottoms, one for each round that has both."""
    return [tops[number] / bottoms[number] for number in sorted(tops.keys() & bottoms.keys())]


def median_ratio(tops, bottoms) -> Optional[float]:
    found = ratios(tops, bottoms)
    return statistics.median(found) if found else None


def medians(runs) -> List[Result]:
    found = []
    for (tokens, *_), programs in by_case(runs).items():
        options = next((result["options"] for rounds in programs.values() for result in rounds.values()
                        if "options" in result), None)
        if options is None:
            continue  # ferry has no run in the rounds of the others
        setting, limits = setting_of(options), limits_of(programs)
        for program, rounds in programs.items():
            pairs = times_of(rounds)
            found.append(Result(program, setting, tokens, median(pairs), median(limits), median_ratio(pairs, limits)))
    if not found:
        raise ValueError("no run of section 'shapes' succeeded")
    return found


def spans(events) -> List[Span]:
    """Returns the Spans of the events of a trace. The event of an operation ("dispatch 7") has its waits; the events
    after it are the phases of that operation."""
    found, exchange = [], 0
    for event in events:
        if event["ph"] != "X":
            continue
        whole = re.fullmatch(rf"{event['cat']} (\d+)", event["name"])
        exchange = int(whole[1]) if whole else exchange
        waits = event.get("args", {}).get("wait_us", {})
        found.append(Span(event["tid"], event["cat"], exchange, "" if whole else event["name"], event["ts"],
                          event["ts"] + event["dur"], tuple(waits.values())))
    if not found:
        raise ValueError("no spans")
    return found
