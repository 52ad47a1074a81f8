#!/usr/bin/env python3
"""Checks the models of this folder with Spin: each configuration must hold over all interleavings,
and with any one guard removed the model must fail, in the stated way. `check.py [NAME...]` runs
only the named ones; `quick` names those that must hold and take seconds, `deep` those that take longer,
`fails` all that must fail. Needs spin, gcc and 1 GiB of memory.
What is modelled and what is not: docs/decisions/protocol_model.md."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
DEFAULTS = {"POISONS": 0, "FLIPS": 0, "EMPTIES": 0, "REFUSALS": 0, "NB": 2}

# name: (ranks, depth, epochs, other settings). All settings at once with 3 ranks and 3 epochs would have too many
# states, so several configurations with some settings each overlap.
CONFIGURATIONS = {
    "plain": (3, 1, 3, ""),
    "halves": (3, 2, 3, "HALVES"),
    "sparse": (2, 2, 3, "HALVES SPARSE"),
    "copies": (2, 2, 3, "HALVES COPIES NB=3"),
    "sums": (3, 1, 2, "NB=1 SUMS"),
    "sums-halves": (2, 2, 3, "HALVES SUMS POISONS=1"),
    "sums-death": (2, 1, 2, "NB=1 SUMS DEATH"),
    "overflow": (3, 1, 3, "OVERFLOW REFUSALS=1"),
    "overflow-halves": (2, 2, 2, "HALVES OVERFLOW SPARSE REFUSALS=1"),
    "poison": (3, 1, 3, "NB=1 POISONS=2"),
    "poison-halves": (2, 2, 3, "HALVES POISONS=1 FLIPS=1"),
    "mismatch": (3, 2, 2, "HALVES FLIPS=1"),
    "terms": (3, 1, 1, "NB=1 TERMS FLIPS=1 EMPTIES=1 POISONS=1"),
    "death": (3, 1, 2, "NB=1 DEATH"),
    "death-halves": (2, 2, 2, "HALVES DEATH"),
}

# name: (ranks, the last view, deaths), for views.pml.
VIEWS = {"views": (3, 2, 2), "views-later": (3, 3, 1)}

# name: (attempts, deaths), for admission.pml.
ADMISSIONS = {"admission": (2, 1), "admission-later": (3, 1)}

# name: (attempts, deaths, other settings), for admission_between_nodes.pml.
ADMISSIONS_BETWEEN_NODES = {
    "admission-nodes": (2, 0, ""),
    "admission-nodes-death": (2, 1, ""),
    "admission-new-node": (2, 1, "NEW_NODE"),
}

# name: (ranks of each node, ballots, deaths), for agreement.pml.
AGREEMENTS = {
    "agreement": ((2, 1, 1), 3, 1),
    "agreement-majority": ((1, 2, 2), 3, 2),
    "agreement-later": ((2, 2, 1), 4, 1),
}

# Configurations of millions of states.
DEEP = {"halves", "sparse", "copies", "death", "views-later", "admission-later", "admission-nodes-death",
        "admission-new-node", "agreement-later"}

# How a model fails: in words, and as Spin says it.
HANG = ("a rank waits forever", "invalid end state")
SURVIVOR_HANGS = ("a survivor waits forever", r"ended\|killed")
OUTCOMES = ("ranks disagree on the outcome", r"outcome\[")
RECORD = ("a record is not of this operation", "record_begin")
ROWS = ("rows are not those expected", r"^assertion violated [ (!]*(\(\(matrix.*)?slots\[")
MEMORY = ("rows without memory behind them", r"<committed\[")
BLAME = ("a rank is blamed that owes nothing", r"progress.*&suspects")
LISTS = ("a list is not of this operation", r"lists\[")
SUMS = ("sums are not of this operation", r"sums\[")
REUSED = ("rows in a buffer that is the caller's again", r"pinned\[.*==200")
MEMBERS = ("ranks begin different views", r"members\[")
LEFT_BEHIND = ("a rank that lives is left behind", r"seat\[")
OLD_WORD = ("a word of an earlier view ends a call", r"abort\[")
TWO_PLAY = ("two processes play one rank", r"begun")
GONE = ("a process that has left is in a view that begins", r"gone\[")
FLAG = ("a flag of a living rank is overwritten", r"flag==")
TWO_VIEWS = ("two views with one number are decided", r"outcome==")
NO_BUFFER = ("a buffer that was never posted is used", "invalid array index")

# guard removed: (configuration it fails in, how, what it is)
MUTANTS = {
    "NO_COUNTS_WAIT": ("plain", RECORD, "step 3 reads counts and records without waiting"),
    "NO_SUMS_WAIT": ("sums", SUMS, "step 4 does not wait for the sums of the others"),
    "SUMS_FLAG_FIRST": ("sums", SUMS, "summed before the sums are written"),
    "NO_GROWN_WAIT": ("overflow", MEMORY, "step 5 does not wait for those that grow"),
    "NO_REUSE_GUARD": ("halves", ROWS, "step 6 left out"),
    "GUARD_WITHOUT_FINISHING": ("halves", HANG, "step 6 waits but does not finish its own first"),
    "GUARD_OF_OWN_DESTINATIONS": ("sparse", HANG, "step 6 looks at its own destinations only"),
    "NO_ROWS_WAIT": ("plain", ROWS, "step 8 does not wait"),
    "NO_OUTPUTS_WAIT": ("plain", RECORD, "a combine does not wait before it reads"),
    "EARLY_WITHOUT_FLAGS": ("copies", ROWS, "outputs are read early, before they are published"),
    "EARLY_WITHOUT_RECORDS": ("mismatch", NO_BUFFER, "and of a rank that does not make this call"),
    "NO_SETTLE": ("copies", RECORD, "step 1 left out"),
    "RING=1": ("plain", RECORD, "a ring of D records, blocking calls", {"RING": "1"}),
    "RING=D": ("halves", RECORD, "a ring of D records", {"RING": "D"}),
    "LISTS=1": ("halves", LISTS, "one list of rows for D operations", {"LISTS": 1}),
    "LISTS_READ_LATE": ("halves", LISTS, "a list is read after delivered was said"),
    "FLAG_BEFORE_RECORD": ("plain", RECORD, "announced before the record is written"),
    "FLAG_BEFORE_ROWS": ("plain", ROWS, "delivered before the rows are written"),
    "OUTPUTS_AFTER_FLAG": ("plain", ROWS, "delivered before the outputs are copied in"),
    "READ_THROUGH_BEFORE_READING": ("copies", ROWS, "read_through raised before reading"),
    "NO_PENDING_PIN": ("halves", ROWS, "an unfinished dispatch does not pin its buffer"),
    "NO_VIEW_PIN": ("halves", ROWS, "a live view does not pin its buffer"),
    "NO_COPY_GUARD": ("copies", ROWS, "outputs copied over ones that are still read"),
    "COPY_WAITS": ("copies", HANG, "a combine waits for a buffer before it announced itself"),
    "REFUSAL_IN_RECORD": ("overflow", OUTCOMES, "refused memory becomes a poison of the record"),
    "IGNORE_POISON": ("poison", NO_BUFFER, "poisons are not looked at"),
    "IGNORE_MISMATCH": ("mismatch", NO_BUFFER, "kinds are not compared"),
    "COMPARES_WITH_OWN_RECORD": ("terms", OUTCOMES, "each peer is compared with me only"),
    "NOT_DELIVERED_AFTER_ERROR": ("mismatch", HANG, "who ends with an error does not raise delivered"),
    "REJECTED_KEEPS_NUMBER": ("poison", HANG, "a rejected call takes no number"),
    "REJECTED_RETURNS_AT_ONCE": ("poison", RECORD, "a rejected call does not wait for the others",
                                 {"REJECTED_RETURNS_AT_ONCE": 1, "NO_RING_CHECK": 1}),
    "PEER_REJECTED_RETURNS_AT_ONCE": ("poison", RECORD, "the first poison seen ends the wait",
                                      {"PEER_REJECTED_RETURNS_AT_ONCE": 1, "NO_RING_CHECK": 1}),
    "NO_ABORT_POLL": ("death", SURVIVOR_HANGS, "waits do not look at abort words"),
    "NO_ABORT_WRITE": ("death", SURVIVOR_HANGS, "who gives up does not write its abort word"),
    "NO_LIVENESS_POLL": ("death", SURVIVOR_HANGS, "waits do not look whether a peer lives"),
    "NO_DEADLINE": ("death", SURVIVOR_HANGS, "waits have no deadline"),
    "NO_RECHECK": ("death", BLAME, "no look at the flags after a death was seen"),
    "BROKEN_BUFFERS_ARE_REUSED": ("death-halves", REUSED, "a stopped rank wakes and writes"),
}

SLEEP_MUTANTS = {
    "NO_SECOND_LOOK": "the flag is not looked at again before sleeping",
    "NO_RING": "the doorbell is not rung",
    "DOORBELL_READ_LAST": "the doorbell is read after the second look",
    "FLAG_STORE_MAY_LINGER": "the flag is raised without sequential consistency",
    "SLEEPING_STORE_MAY_LINGER": "`sleeping` is set without sequential consistency",
}

VIEW_MUTANTS = {
    "SEATS_BY_STORE": (MEMBERS, "the seat of a lost rank is set without compare-and-swap"),
    "NO_SEATS_WAIT": (MEMBERS, "a view begins before all seats are decided"),
    "LIVING_ARE_LEFT_BEHIND": (LEFT_BEHIND, "a rank that is late is set outside"),
    "ONE_PLACE": (MEMBERS, "what is prepared has one place for all views"),
    "PREPARES_LATE": (MEMBERS, "a rank prepares after it has come"),
    "WORDS_WITHOUT_VIEW": (OLD_WORD, "abort words have no number of a view"),
}


ADMISSION_MUTANTS = {
    "NO_DECISION": (HANG, "each rank decides for itself whether the view begins"),
    "LATER_DECISIONS_COUNT": (TWO_PLAY, "a late process takes the decision of a later admission"),
    "NO_CLEARING_BY_THE_COORDINATOR": (FLAG, "a process that comes back clears its flags itself"),
}

ADMISSION_BETWEEN_NODES_MUTANTS = {
    "CLAIMS_DO_NOT_COUNT": (TWO_PLAY, "a late process takes the seat of a later admission for its own"),
    "SEAT_OF_ITS_OWN_BY_STORE": (GONE, "the seat of a process that leaves is set without compare-and-swap"),
}

AGREEMENT_MUTANTS = {
    "HALF_IS_ENOUGH": "nodes with half of the votes go on, whichever they are",
    "ANY_PART_IS_ENOUGH": "nodes go on however few votes they have",
    "ONE_ACCEPTANCE_DECIDES": "a view is decided when one node has accepted it",
    "OLDER_BALLOTS_COUNT": "a node that has promised a ballot takes an earlier one",
    "WHAT_WAS_ACCEPTED_DOES_NOT_COUNT": "a proposer proposes the nodes that it reaches, whatever they had accepted",
    "FIRST_ACCEPTED_COUNTS": "and not the last of what they had accepted",
    "PROMISES_END_WITH_THEIR_SPEAKER": "the next rank of a node does not know what it promised",
    "ACCEPTANCES_END_WITH_THEIR_SPEAKER": "nor what it accepted",
    "BALLOTS_ARE_FORGOTTEN": "the next rank of a node begins with the first ballot",
    "WRITTEN_OVER": "what is accepted is written over what was accepted before",
}


def settings_of(name):
    ranks, depth, epochs, others = CONFIGURATIONS[name]
    settings = dict(DEFAULTS, R=ranks, D=depth, EPOCHS=epochs)
    for word in others.split():
        key, _, value = word.partition("=")
        settings[key] = value or 1
    return settings


def agreement_of(votes, ballots, deaths):
    return {"V0": votes[0], "V1": votes[1], "V2": votes[2], "BALLOTS": ballots, "DEATHS": deaths}


class Result:
    """What a verification said: complete, number of states, and the first error."""

    def __init__(self, text):
        self.text = text
        found = re.search(r"pan:\d+: (.*) \(at depth", text)
        self.error = found.group(1) if found else ""
        states = re.search(r"(\d+) states, stored", text)
        self.states = int(states.group(1)) if states else 0
        incomplete = "Search not completed" in text or "max search depth too small" in text
        self.complete = bool(states) and "errors: 0" in text and not incomplete


def verify(model, settings, optimise):
    with tempfile.TemporaryDirectory() as scratch:
        for name in os.listdir(FOLDER):
            if name.endswith(".pml"):
                shutil.copy(os.path.join(FOLDER, name), scratch)
        defines = [f"-D{key}={value}" for key, value in settings.items()]
        run(["spin", "-a", *defines, model], scratch)
        flags = [optimise, "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=2000"]
        run(["gcc", *flags, "-o", "pan", "pan.c"], scratch)
        # A dead rank has no end; the model itself asserts that the others ended (-E).
        command = ["./pan", "-m20000", "-w22"] + (["-E"] if "DEATH" in settings else [])
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        return Result(done.stdout + done.stderr)


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0 or "Error" in done.stdout:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def all_checks():
    """Yields (name, model, settings, expected error or None, what it is)."""
    for name in CONFIGURATIONS:
        ranks, depth, epochs, others = CONFIGURATIONS[name]
        what = f"{ranks} ranks, depth {depth}, {epochs} epochs {others}".strip()
        yield name, "exchange.pml", settings_of(name), None, what
    for name, (ranks, last, deaths) in VIEWS.items():
        what = f"{ranks} ranks, {last} views, up to {deaths} deaths"
        yield name, "views.pml", {"R": ranks, "LAST": last, "DEATHS": deaths}, None, what
    for name, (attempts, deaths) in ADMISSIONS.items():
        what = f"2 members, 2 that come, {attempts} attempts, up to {deaths} deaths"
        yield name, "admission.pml", {"ATTEMPTS": attempts, "DEATHS": deaths}, None, what
    for name, (attempts, deaths, others) in ADMISSIONS_BETWEEN_NODES.items():
        what = f"2 nodes, 2 processes that come, {attempts} attempts, up to {deaths} deaths {others}".strip()
        settings = {"ATTEMPTS": attempts, "DEATHS": deaths, **({others: 1} if others else {})}
        yield name, "admission_between_nodes.pml", settings, None, what
    for name, (votes, ballots, deaths) in AGREEMENTS.items():
        what = f"nodes of {votes} ranks, {ballots} ballots, up to {deaths} deaths of speakers"
        yield name, "agreement.pml", agreement_of(votes, ballots, deaths), None, what
    yield "sleep", "sleep.pml", {}, None, "2 peers wake a sleeper twice"
    for guard, (name, expected, what, *more) in MUTANTS.items():
        settings = settings_of(name)
        settings.update(more[0] if more else {guard: 1})
        yield guard, "exchange.pml", settings, expected, f"{what} [{name}]"
    for guard, (expected, what) in VIEW_MUTANTS.items():
        settings = {"R": 3, "LAST": 3, "DEATHS": 1, guard: 1}
        yield guard, "views.pml", settings, expected, f"{what} [views-later]"
    for guard, (expected, what) in ADMISSION_MUTANTS.items():
        yield guard, "admission.pml", {"ATTEMPTS": 2, "DEATHS": 1, guard: 1}, expected, f"{what} [admission]"
    for guard, (expected, what) in ADMISSION_BETWEEN_NODES_MUTANTS.items():
        settings = {"ATTEMPTS": 2, "DEATHS": 0, guard: 1}
        yield guard, "admission_between_nodes.pml", settings, expected, f"{what} [admission-nodes]"
    for guard, what in AGREEMENT_MUTANTS.items():
        settings = {**agreement_of(*AGREEMENTS["agreement"]), guard: 1}
        yield guard, "agreement.pml", settings, TWO_VIEWS, f"{what} [agreement]"
    for guard, what in SLEEP_MUTANTS.items():
        yield guard, "sleep.pml", {guard: 1}, HANG, f"{what} [sleep]"


def main():
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    wanted = sys.argv[1:]
    passed = failed = 0
    for name, model, settings, expected, what in all_checks():
        kind = "fails" if expected else "deep" if name in DEEP else "quick"
        if wanted and not {name, kind} & set(wanted):
            continue
        began = time.monotonic()
        result = verify(model, settings, "-O2" if kind == "deep" else "-O1")
        good = result.complete if not expected else bool(re.search(expected[1], result.error))
        passed, failed = passed + good, failed + (not good)
        told = f"holds, {result.states} states"
        if result.error:
            told = f"fails, {expected[0] if expected and good else result.error}"
        seconds = time.monotonic() - began
        print(f"{'ok  ' if good else 'FAIL'} {name}: {what}: {told} ({seconds:.1f} s)", flush=True)
        if not good:
            print(result.text[-2000:])
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime
    print(f"{seconds:.0f} s of processor time, at most {usage.ru_maxrss >> 10} MiB")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
