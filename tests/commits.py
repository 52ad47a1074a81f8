#!/usr/bin/env python3
"""commits.py [<range>]: whether the subject of each commit is "area: summary", has 72 characters at most and stands
once. Without a range all commits after FIRST, the first one to which the rule applies. Called by scripts/test.sh."""

import re
import subprocess
import sys

FIRST = "dbff0cf"
LONGEST = 72


def complaints(subjects):
    """What is wrong with the subjects, {commit: subject}."""
    seen = {}
    for commit, subject in subjects.items():
        if len(subject) > LONGEST:
            yield f"{commit}: {len(subject)} characters, at most {LONGEST}: {subject}"
        if not re.match(r"[a-z][\w ,./-]*: \S", subject):
            yield f"{commit}: no area before a colon: {subject}"
        if subject in seen:
            yield f"{commit}: the same subject as {seen[subject]}: {subject}"
        seen[subject] = commit


def main():
    commits = sys.argv[1] if len(sys.argv) > 1 else f"{FIRST}..HEAD"
    log = subprocess.run(["git", "log", "--no-merges", "--reverse", "--format=%h %s", commits], capture_output=True,
                         text=True)
    if log.returncode != 0:  # a copy without history
        print(f"commits: no {commits} here")
        return 0
    found = list(complaints(dict(line.split(" ", 1) for line in log.stdout.splitlines())))
    print("\n".join([*found, f"commits: {len(found)} complaints"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
