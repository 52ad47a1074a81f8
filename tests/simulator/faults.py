#!/usr/bin/env python3
"""Which seeds of the simulator find faults that are put into the engine one at a time: writes the table of
docs/protocol.md, all of one version of the simulator.

    tests/simulator/faults.py [--seeds 1000] [NAME ...]    those whose row has a word of NAME; without: all
    tests/simulator/faults.py --check                      whether each fault can still be put in

A fault is a text of the engine and what stands in its place. Each is built and run in a copy of this tree, in
build/faults; nothing here is changed but the table. Called by ctest with --check."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COPY = ROOT / "build" / "faults"
PAGE = ROOT / "docs" / "protocol.md"
HEAD = "| fault | seeds that found it |\n|---|---|\n"
SHOWN = 4  # seeds of a row
RUNS = 50  # seeds of one call of the program

WAIT, LEAVE = "src/group/wait.cc", "src/group/between_nodes.cc"
FORWARD, PROTOCOL = "src/exchange/internode/forwarder.cc", "src/exchange/protocol.cc"
ACCEPT, JOIN = "src/bootstrap/acceptor.cc", "src/bootstrap/member.cc"

# (what it is, [(file, text, in its place)])
FAULTS = [
    ("waiting, as it was once: any rank judges that another one is gone",
     [(WAIT, "  if (await.last_hop && (*await.last_hop)[rank] != rank_) return false;\n", "")]),
    ("waiting, as it was once: that a rank went is worth more than what it said before (fbaf476)",
     [(WAIT, "    if (flags_->gave_up(mate)) continue;\n", ""),
      (WAIT, "    if (!flags_->gave_up(culprit)) return culprit;\n", "    return culprit;\n")]),
    ("forwarding, as it was once: a call ends before what others wait for has left (7826219)",
     [(LEAVE, "    if (all_left()) return {};\n", "    return {};\n")]),
    ("forwarding, as it was once: an exchange takes those along that speak through it (7826219)",
     [("src/exchange/state.cc",
       "  if (parts_.forwarder) parts_.group->leave_open(std::move(parts_.forwarder));\n", "")]),
    ("leaving, as it was once: a rank leaves before its last messages are answered",
     [(LEAVE, "      if (nodes_.reached[peer] && !nodes_.heard[peer] && !left(peer) && !lost) return false;\n",
       "      static_cast<void>(lost);\n")]),
    ("leaving, as it was once: a rank leaves before it has passed on what it keeps (a12be4e)",
     [(LEAVE, "    if (!all_left() || (!broken && !std::ranges::all_of(nodes_.left_open, &Channel::done)))\n"
       "      return false;\n", "    static_cast<void>(broken);\n")]),
    ("waiting, as it was once: a mate that owes a part of others' sums is not named (a12be4e)",
     [(WAIT, "  if (!messages_) return -1;\n  const auto lock", "  if (size_ > 0) return -1;\n  const auto lock")]),
    ("forwarding: a receive half returns before this rank has served others",
     [("src/exchange/combine.cc", "exchange_.forwarder ? await_served() : Status{}", "Status{}")]),
    ("forwarding: rows without room are dropped",
     [(FORWARD, "    if (bytes > 0 && splitter.send(unit) >= 0) break;  // no room\n",
       "    if (bytes > 0) static_cast<void>(splitter.send(unit));\n")]),
    ("a rank that gave up, and ends its exchange, lets waits for its rows pass",
     [(PROTOCOL, "  if (!group_.usable()) return;\n", "")]),
    ("one that gives up for want of room names any mate",
     [(WAIT, "  if (!await.outgoing || missing.empty()) return missing;\n", "  if (size_ > 0) return missing;\n")]),
    ("a packet that comes twice is read twice",
     [("src/network/message_channel.cc", "  if (ahead != 0) return;\n", "  if (ahead > 0) return;\n")]),
    ("flags of another node are stored as they come, and go back",
     [(FORWARD, "  while (seen < value && !flag.compare", "  while (!flag.compare")]),
    ("a receive buffer is written while it may still be read",
     [("src/exchange/dispatch.cc", "  if (protocol.min_read_through() >= free_after) return {};\n",
       "  if (free_after < ~std::uint64_t{0}) return {};\n")]),
    ("abort words are not read by a rank that waits",
     [(WAIT, "reporter(); peer >= 0) {", "reporter(); peer > size_) {")]),
    ("joining: rank 0 does not look whether a rank that came has gone",
     [(ACCEPT, "    } else if (member.connection->closed()) {\n", "    } else if (member.who.empty()) {\n")]),
    ("joining: a stranger's connection is never dropped",
     [(ACCEPT, "  return !guests_.empty() && now_ns() - guests_.front().since_ns > kStrangerNs;\n",
       "  return guests_.size() > 1'000'000;\n")]),
    ("joining: a descriptor is kept where memory is refused",
     [("src/bootstrap/processes.cc", "    return Segment::attach(passed->release(), bytes);\n",
       "    return Segment::attach(fcntl(passed->release(), F_DUPFD_CLOEXEC, 0), bytes);\n")]),
    ("joining: a rank that loses rank 0 looks for it until its deadline",
     [(JOIN, "    if (!frame) hung_up_ = deadline.sooner(kComesAgain);\n", "")]),
]


def put_in(changes):
    """{file: text with the fault}; ends with a word about a text that is not there once."""
    texts = {}
    for name, before, after in changes:
        text = texts.get(name) or (ROOT / name).read_text()
        if text.count(before) != 1:
            sys.exit(f"{name} has this text {text.count(before)} times, not once:\n{before}")
        texts[name] = text.replace(before, after)
    return texts


def update(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def copy_tree(changed):
    """Only what differs is written, so that only that is compiled."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    for name in listed:
        wanted = name.startswith(("src/", "include/", "cmake/", "tests/", "CMake", "tools/"))
        if wanted and (ROOT / name).is_file():
            try:
                update(COPY / name, changed.get(name) or (ROOT / name).read_text())
            except UnicodeDecodeError:
                pass  # a seed of a fuzzer


def build():
    subprocess.run(["cmake", "--preset", "release"], cwd=COPY, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build/release", "--target", "simulate"], cwd=COPY, check=True,
                   stdout=subprocess.DEVNULL)


def run(first, count):
    return subprocess.run([COPY / "build/release/tests/simulator/simulate", str(first), str(count)],
                          capture_output=True, text=True, errors="replace")


def found_by(num_seeds):
    """The first few. A run that ends the program found it too."""
    seeds = []
    for first in range(0, num_seeds, RUNS):
        done = run(first, RUNS)
        if done.returncode < 0:
            seeds += [seed for seed in range(first, first + RUNS) if run(seed, 1).returncode != 0]
        seeds += sorted({int(seed) for seed in re.findall(r"^seed (\d+):", done.stdout, re.MULTILINE)} - set(seeds))
        if len(seeds) >= SHOWN:
            break
    return seeds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.check:
        for _, changes in FAULTS:
            put_in(changes)
        return
    page = PAGE.read_text()
    begin = page.index(HEAD) + len(HEAD)
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", page[begin:], re.MULTILINE))
    for title, changes in FAULTS:
        if arguments.names and not any(name in title for name in arguments.names):
            continue
        copy_tree(put_in(changes))
        build()
        seeds = found_by(arguments.seeds)
        rows[title] = ", ".join(map(str, seeds[:SHOWN])) or f"none of {arguments.seeds}"
        print(f"{title}: {rows[title]}", flush=True)
    table = "".join(f"| {title} | {rows[title]} |\n" for title, _ in FAULTS if title in rows)
    end = begin + len(re.match(r"(\|.*\n)*", page[begin:])[0])
    PAGE.write_text(page[:begin] + table + page[end:])


if __name__ == "__main__":
    main()
