#!/usr/bin/env python3
"""Which seeds of the simulator find faults that are put into the engine one at a time: writes the table of
docs/lab/simulator.md, all of one version of the simulator.

    tests/simulator/faults.py [--seeds 2000] [NAME ...]    those whose row has a word of NAME; without: all
    tests/simulator/faults.py --check                      whether each fault can still be put in

A fault is a text of the engine and what stands in its place, where FAULT is true if it is put in. One whose name begins
with "views", "admissions" or "agreement" is looked for in the runs of that kind (`simulate views`). All are built
together, once, in a copy of this tree, in build/faults; a variable of the environment says which one is put in. Nothing
here is changed but the table. Called by ctest with --check."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COPY = ROOT / "build" / "faults"
PAGE = ROOT / "docs" / "lab" / "simulator.md"
HEAD = "| fault | seeds that found it |\n|---|---|\n"
SHOWN = 4  # seeds of a row
RUNS = 50  # seeds of one call of the program
HEADER, VARIABLE = "src/base/fault.h", "FERRY_FAULT"

GIVE_UP, BLAME, LEAVE = "src/group/giving_up.cc", "src/group/blame.cc", "src/group/between_nodes.cc"
RELAY, PROTOCOL = "src/exchange/internode/row_relay.cc", "src/exchange/protocol/protocol.cc"
SURVIVE, NEXT_VIEW = "src/group/survive.cc", "src/exchange/protocol/next_view.cc"
STATE_OF_GROUP = "src/group/state.cc"
ADMIT, FLAGS, STATE = "src/group/admit.cc", "src/group/shared_flags.cc", "src/exchange/state.cc"
ADMIT_NODES, SUMS = "src/group/admit_between_nodes.cc", "src/exchange/internode/sum_server.cc"
AGREE, VOTES, VIEWS = ("src/group/agreement_between_nodes.cc", "src/group/agreement_votes.cc",
                       "src/group/view_messages.cc")
ACCEPT, JOIN, MEET = "src/bootstrap/acceptor.cc", "src/bootstrap/member.cc", "src/bootstrap/processes.cc"

# (what it is, [(file, text, in its place)])
FAULTS = [
    ("waiting, as it was once: any rank judges that another one is gone",
     [(GIVE_UP, "  if (await.last_hop && (*await.last_hop)[rank]",
       "  if (!FAULT && await.last_hop && (*await.last_hop)[rank]")]),
    ("waiting, as it was once: that a rank went is worth more than what it said before (fbaf476)",
     [(BLAME, "    if (on_the_way.gave_up ||", "    if ((!FAULT && on_the_way.gave_up) ||"),
      (BLAME, "gone && !seen.ranks[culprit].gave_up)", "gone && (FAULT || !seen.ranks[culprit].gave_up))")]),
    ("forwarding, as it was once: a call ends before what others wait for has left (7826219)",
     [(LEAVE, "    if (all_sent()) return {};", "    if (FAULT || all_sent()) return {};")]),
    ("forwarding, as it was once: an exchange takes those along that speak through it (7826219)",
     [("src/exchange/state.cc", "  parts_.ways.keep_open();", "  if (!FAULT) parts_.ways.keep_open();")]),
    ("leaving, as it was once: a rank leaves before its last messages are answered",
     [(LEAVE, "      if (waited && !nodes_.acknowledged",
       "      if (!FAULT && waited && !nodes_.acknowledged")]),
    ("leaving, as it was once: a rank leaves before it has passed on what it keeps (a12be4e)",
     [(LEAVE, "    if (!all_sent() || (!broken && std::ranges::any_of(nodes_.channels, is_open)))",
       "    if (!FAULT && (!all_sent() || (!broken && std::ranges::any_of(nodes_.channels, is_open))))")]),
    ("waiting, as it was once: a mate that owes a part of others' sums is not named (a12be4e)",
     [(GIVE_UP, "  if (!messages_) return -1;\n  const auto held",
       "  if (FAULT || !messages_) return -1;\n  const auto held")]),
    ("forwarding: a receive half returns before this rank has served others",
     [("src/exchange/combine/combine.cc", "  return one_node ? Status{}", "  return FAULT || one_node ? Status{}")]),
    ("forwarding: rows of the second way are not waited for",
     [(PROTOCOL, "  return status.ok() && both_ways ?", "  return !FAULT && status.ok() && both_ways ?")]),
    ("forwarding: rows without room are dropped",
     [(RELAY, "    if (bytes > 0 && splitter.send(unit, sending) >= 0) break;",
       "    if (bytes > 0 && splitter.send(unit, sending) >= 0 && !FAULT) break;")]),
    ("a rank that gave up, and ends its exchange, lets waits for its rows pass",
     [(PROTOCOL, "  if (!group_.usable()) {", "  if (!FAULT && !group_.usable()) {")]),
    ("one that gives up for want of room names any mate",
     [(GIVE_UP, "  if (!await.outgoing || missing.empty()) return",
       "  if (FAULT || !await.outgoing || missing.empty()) return")]),
    ("a packet that comes twice is read twice",
     [("src/network/message_channel.cc", "  if (ahead != 0) return;",
       "  if (FAULT ? ahead > 0 : ahead != 0) return;")]),
    ("flags of another node are stored as they come, and go back",
     [("src/group/wait.h",
       "  while (seen < value && !flag.compare", "  while ((FAULT || seen < value) && !flag.compare")]),
    ("a receive buffer is written while it may still be read",
     [("src/exchange/dispatch/dispatch.cc", "  if (protocol.min_read_through() >= free_after) return",
       "  if (FAULT || protocol.min_read_through() >= free_after) return")]),
    ("abort words are not read by a rank that waits",
     [(GIVE_UP, "reporter(); peer >= 0) {", "reporter(); !FAULT && peer >= 0) {")]),
    ("joining: rank 0 does not look whether a rank that came has gone",
     [(ACCEPT, "    } else if (member.connection->closed()) {",
       "    } else if (!FAULT && member.connection->closed()) {")]),
    ("joining: a stranger's connection is never dropped",
     [(ACCEPT, "  return !guests_.empty() && now_ns()", "  return !FAULT && !guests_.empty() && now_ns()")]),
    ("joining: a descriptor is kept where memory is refused",
     [(MEET, "Segment::attach(passed->release(), bytes)",
       "Segment::attach(FAULT ? fcntl(passed->release(), F_DUPFD_CLOEXEC, 0) : passed->release(), bytes)")]),
    ("joining: a rank that loses rank 0 looks for it until its deadline",
     [(JOIN, "    if (!frame && coord", "    if (!FAULT && !frame && coord")]),
    ("joining, as it was once: a rank that cannot meet those of its host says so when they have come",
     [(MEET, "    across.give_up(", "    if (FAULT) check_no_problem(across.all_gather(error.what(), deadline));\n"
       "    across.give_up("),
      (MEET, '  across.all_gather("", deadline);  // all',
       '  check_no_problem(across.all_gather("", deadline));  // all')]),
    ("views: an exchange goes on from the last operation of the rank itself",
     [(NEXT_VIEW, "    issued_ = std::max(issued_, theirs.", "    if (!FAULT) issued_ = std::max(issued_, theirs.")]),
    ("views: barriers go on from those of the rank itself",
     [(SURVIVE, "    barriers = std::max(barriers, slot.", "    if (!FAULT || rank == group.rank_)\n"
       "      barriers = std::max(barriers, slot.")]),
    ("views: a rank that lives and has not come is left behind",
     [(SURVIVE, "|| !group_.rendezvous_->alive(rank)) {", "|| FAULT || !group_.rendezvous_->alive(rank)) {")]),
    ("views: a rank begins before the seats of all are decided",
     [(SURVIVE, "    if (undecided.empty() && are_known()) return",
       "    if (FAULT || (undecided.empty() && are_known())) return")]),
    ("views: an exchange of the last view goes on in which a member has none",
     [(NEXT_VIEW, "  if (!lacking.empty()) {", "  if (!FAULT && !lacking.empty()) {")]),
    ("views: ranks that meet to make an exchange do not look whether one is lost",
     [(SURVIVE, "    require_ok(ViewChange::", "    if (!FAULT) require_ok(ViewChange::")]),
    ("views: flags of a rank that comes back are not cleared in the group",
     [(ADMIT, "    group.flags_->make_place(", "    if (!FAULT) group.flags_->make_place(")]),
    ("views: flags of a rank that comes back are not cleared in exchanges",
     [(STATE, "  begin_flags(parts_.view, rank, next);", "  if (!FAULT) begin_flags(parts_.view, rank, next);")]),
    ("views, as it was once: records of a lost rank are those of the one that takes its place",
     [(STATE, "  std::memset(parts_", "  if (!FAULT) std::memset(parts_")]),
    ("views, as it was once: a rank that comes back clears its flags itself",
     [(FLAGS, "  view_ = view;\n  segment_->map_in", "  if (FAULT) make_place(rank, view + 1, 0);\n  view_ = view;\n"
       "  segment_->map_in")]),
    ("views, as it was once: a process takes the decision of a later admission for that of its own",
     [(FLAGS, "  if (seen >> AbortWord::kViewShift == number)",
       "  if (FAULT || seen >> AbortWord::kViewShift == number)")]),
    ("views: each rank of an admission decides for itself",
     [(ADMIT, "  why = flags.decide_admission(", "  if (!FAULT) why = flags.decide_admission(")]),
    ("views: flags begin with another view",
     [(STATE, "  Protocol::prepare(view.control(rank), number, 0);",
       "  Protocol::prepare(view.control(rank), number + (FAULT ? 1 : 0), 0);")]),
    ("views: offers are kept when their view ends",
     [("src/group/survival.cc", "  open_offers_.clear();", "  if (!FAULT) open_offers_.clear();")]),
    ("views, as it was once: an error of an answered collective ends the next one",
     [("src/bootstrap/coordinator.cc", "      frame->call < gathering_.call)",
       "      !FAULT && frame->call < gathering_.call)")]),
    ("views: a group that begins with some of its ranks waits for all",
     [("src/group/state.cc", "    survival_.set_view(view);", "    if (!FAULT) survival_.set_view(view);")]),
    ("admissions, as it was once: a view keeps how far lost ranks had come with sums",
     [(SUMS, "  for (auto& served : served_)", "  if (FAULT) return;\n  for (auto& served : served_)")]),
    ("admissions, as it was once: a member that gives up in the handshake closes its connection",
     [(JOIN, "  if (!frame && deadline.passed()) frame", "  if (!FAULT && !frame && deadline.passed()) frame")]),
    ("admissions: members do not make objects where they met",
     [(ADMIT_NODES, "  if (failure.ok()) take_seats", "  if (FAULT) group.survival_.set_met_for({});\n"
       "  if (failure.ok()) take_seats")]),
    ("admissions: no places are made for newcomers",
     [(ADMIT, "  if (admission.is_new_node(rank) || rank", "  if (FAULT || admission.is_new_node(rank) || rank")]),
    ("admissions: a process is taken for the one that it replaces",
     [(ADMIT_NODES, "  group.messages_->replace(", "  if (!FAULT) group.messages_->replace(")]),
    ("admissions: messages for an exchange that a newcomer will join are dropped",
     [(SURVIVE, "  if (group.messages_) group.survival_.messages().hold(",
       "  if (!FAULT && group.messages_) group.survival_.messages().hold(")]),
    ("admissions: new memory has no numbers of ranks of other nodes",
     [(STATE, "    if (of == object) numbers", "    if (!FAULT && of == object) numbers")]),
    ("admissions: newcomers of nodes without members take no seats",
     [(ADMIT_NODES, "    if (!group.here(rank) && !admission.is_new_node(rank)) continue;",
       "    if (!group.here(rank) && (FAULT || !admission.is_new_node(rank))) continue;")]),
    ("admissions: a newcomer that has died takes its seat",
     [(ADMIT_NODES, "    const bool alive = ", "    const bool alive = FAULT || ")]),
    ("admissions: a member whose meeting ends does not come to the next view",
     [(ADMIT_NODES, "  if (failure.ok()) take_seats(group, admission);\n",
       "  if (failure.ok()) take_seats(group, admission);\n  if (FAULT && !failure.ok()) require_ok(failure);\n")]),
    ("agreement: half of the votes are enough without the lowest rank",
     [(VOTES, "== all && nodes_[0].*vote)", "== all && (FAULT || nodes_[0].*vote))")]),
    ("agreement: any votes are enough",
     [(VOTES, "  return 2 * votes > all ||", "  return FAULT || 2 * votes > all ||")]),
    ("agreement: a node that can be reached is not waited for",
     [(VOTES, "{ return node.*vote || reachable", "{ return FAULT || node.*vote || reachable")]),
    ("agreement: a view is decided before enough nodes have accepted it",
     [(AGREE, "Phase::kAccepting && enough(vote)", "Phase::kAccepting && (FAULT || enough(vote))")]),
    ("agreement: a node takes a ballot before the one that it promised",
     [(AGREE, "  if (message.ballot < promised)", "  if (!FAULT && message.ballot < promised)")]),
    ("agreement: what a node has accepted before is not proposed",
     [(AGREE, "    if (node.promised && node.promise.accepted >",
       "    if (!FAULT && node.promised && node.promise.accepted >")]),
    ("agreement: what was accepted ends with the speaker",
     [(AGREE, "  mine.accepted.store(with_half", "  if (!FAULT) mine.accepted.store(with_half")]),
    ("agreement: messages about another view are read",
     [(AGREE, "    if (view != next_) continue;", "    if (!FAULT && view != next_) continue;")]),
    ("agreement: what ranks of other nodes prepared is not learned",
     [(AGREE, "  group.survival().store_prepared(", "  if (!FAULT) group.survival().store_prepared(")]),
    ("agreement: a rank that asks for a view which has begun gets no answer",
     [(VIEWS, "known = decided != decided_.end();", "known = !FAULT && decided != decided_.end();")]),
    ("agreement: messages of an earlier view are read",
     [(VIEWS, "  if (view == reading_ && begun_) return", "  if (FAULT || (view == reading_ && begun_)) return")]),
    ("agreement: messages of a later view are not kept",
     [(VIEWS, "  if (view >= reading_) kept_", "  if (!FAULT && view >= reading_) kept_")]),
    ("agreement, as it was once: a rank that gave up leaves without a word to other nodes",
     [(STATE_OF_GROUP, "  send_abort(AbortWord::make(",
       "  send_abort(FAULT ? flags_->abort(rank_) : AbortWord::make(")]),
    ("agreement, as it was once: a node with too few votes does not tell other nodes",
     [(VOTES, "    if (known && !ViewMessages", "    if (!FAULT && known && !ViewMessages")]),
    ("agreement, as it was once: nodes that cannot reach each other are in one view",
     [(VOTES, "    return apart(one, other) || apart(other, one);",
       "    return !FAULT && (apart(one, other) || apart(other, one));")]),
    ("agreement, as it was once: links that other ranks than the speakers lost do not count",
     [(VOTES, "    if (!ended && word >>", "    if (!FAULT && !ended && word >>")]),
    ("agreement, as it was once: a rank that does not speak for its node is silent",
     [(AGREE, "    return message.asks() ? std", "    return !FAULT && message.asks() ? std")]),
    ("agreement: a rank that has just died is one to which a link is lost",
     [(AGREE, "&& ballot_ns_ < apart_ns_ + kApartNs", "&& !FAULT && ballot_ns_ < apart_ns_ + kApartNs")]),
    ("agreement, as it was once: other ranks of a node with too few votes wait",
     [(AGREE, "return without < 0 ? Status", "return FAULT || without < 0 ? Status")]),
]


def put_in(faults):
    """{file: text with the faults}. Exits if the text of a fault does not occur exactly once in its file."""
    texts = {}
    for number, (_, changes) in enumerate(faults):
        for name, before, after in changes:
            text = texts.get(name) or f'#include "base/fault.h"\n{(ROOT / name).read_text()}'
            if text.count(before) != 1:
                sys.exit(f"{name} has this text {text.count(before)} times, not once:\n{before}")
            texts[name] = text.replace(before, after.replace("FAULT", f"is_put_in({number})"))
    texts[HEADER] = f"""#pragma once
#include <cstdlib>
inline bool is_put_in(int fault) {{
  static const char* const wanted = std::getenv("{VARIABLE}");
  static const int number = wanted != nullptr ? std::atoi(wanted) : -1;
  return fault == number;
}}
"""
    return texts


def update(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def copy_tree(changed):
    """Writes only files that differ, so that only these are compiled again."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    for name in listed:
        wanted = name.startswith(("src/", "include/", "cmake/", "tests/", "CMake", "tools/", "examples/"))
        if wanted and (ROOT / name).is_file():
            try:
                update(COPY / name, changed.get(name) or (ROOT / name).read_text())
            except UnicodeDecodeError:
                pass  # a seed of a fuzzer
    update(COPY / HEADER, changed[HEADER])


def build():
    subprocess.run(["cmake", "--preset", "release"], cwd=COPY, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build/release", "--target", "simulate"], cwd=COPY, check=True,
                   stdout=subprocess.DEVNULL)


def run(fault, first, count):
    kind = [kind for kind in ("views", "admissions", "agreement") if FAULTS[fault][0].startswith(kind)]
    return subprocess.run([COPY / "build/release/tests/simulator/simulate", *kind, str(first), str(count)],
                          env={**os.environ, VARIABLE: str(fault)}, capture_output=True, text=True, errors="replace")


def found_by(fault, num_seeds):
    """The first seeds that find the fault. A run that ends the program has found it, too."""
    seeds = []
    for first in range(0, num_seeds, RUNS):
        done = run(fault, first, RUNS)
        if done.returncode < 0:
            seeds += [seed for seed in range(first, first + RUNS) if run(fault, seed, 1).returncode != 0]
        seeds += sorted({int(seed) for seed in re.findall(r"^seed (\d+):", done.stdout, re.MULTILINE)} - set(seeds))
        if len(seeds) >= SHOWN:
            break
    return seeds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    changed = put_in(FAULTS)
    if arguments.check:
        return
    page = PAGE.read_text()
    begin = page.index(HEAD) + len(HEAD)
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", page[begin:], re.MULTILINE))
    copy_tree(changed)
    build()
    for number, (title, _) in enumerate(FAULTS):
        if arguments.names and not any(name in title for name in arguments.names):
            continue
        seeds = found_by(number, arguments.seeds)
        rows[title] = ", ".join(map(str, seeds[:SHOWN])) or f"none of {arguments.seeds}"
        print(f"{title}: {rows[title]}", flush=True)
    table = "".join(f"| {title} | {rows[title]} |\n" for title, _ in FAULTS if title in rows)
    end = begin + len(re.match(r"(\|.*\n)*", page[begin:])[0])
    PAGE.write_text(page[:begin] + table + page[end:])


if __name__ == "__main__":
    main()
