#!/usr/bin/env python3
"""`ferry doctor` and the frame of the command line on this machine.
The first argument is the ferry program."""

import json
import os
import re
import resource
import subprocess
import sys
import unittest

FERRY = sys.argv.pop(1)
LIMIT_S = 60
LAUNCHER_NAMES = re.compile("^(FERRY_|OMPI_|PMI|MPI_|SLURM_|RANK$|WORLD_SIZE$)")


def ferry(*arguments, variables=(), **options):
    """Exit code, stdout and stderr, in an environment without any launcher but `variables`."""
    clean = {name: value for name, value in os.environ.items() if not LAUNCHER_NAMES.match(name)}
    done = subprocess.run([FERRY, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                          env={**clean, **dict(variables)}, **options)
    return done.returncode, done.stdout, done.stderr


def doctor(**options):
    code, text, _ = ferry("doctor", "--json", **options)
    return code, json.loads(text)


class Doctor(unittest.TestCase):
    def test_finds_that_ferry_works_here(self):
        code, found = doctor()
        self.assertEqual((code, found["ok"], found["problems"]), (0, True, []))
        self.assertEqual(found["machine"]["cpus"], sorted(os.sched_getaffinity(0)))
        self.assertGreaterEqual(found["machine"]["hardware_threads"], len(os.sched_getaffinity(0)))
        self.assertTrue(found["simd"])
        for trial in found["trials"]:
            self.assertTrue(trial["ok"] or not trial["needed"], trial)
        for name in ("first_touch_ns", "first_touch_window_ns", "flag_ns", "copy_bytes_per_s"):
            self.assertGreater(found["speed"][name], 0)

    def test_says_the_same_in_words(self):
        code, text, errors = ferry("doctor")
        self.assertEqual((code, errors), (0, ""))
        self.assertTrue(text.endswith("\nferry can work here.\n"))
        for word in ("processors", "caches", "huge pages", "shared memory    yes", "UCX", "flag",
                     "what to change for speed"):
            self.assertIn(word, text)

    def test_advises_against_one_processor(self):
        if os.cpu_count() == 1:
            self.skipTest("needs two processors")
        one = min(os.sched_getaffinity(0))
        _, found = doctor(preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        self.assertEqual(found["machine"]["cpus"], [one])
        self.assertFalse(found["speed"]["flag_on_two_cpus"])
        self.assertIn("may use 1 of", found["advice"][0]["finding"])

    def test_fails_where_shared_memory_is_refused(self):
        limit = 1 << 20  # also of a memfd
        code, found = doctor(
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual((code, found["ok"], found["speed"]), (1, False, None))
        self.assertIn("ulimit -f", json.dumps(found["problems"]))

    def test_names_the_launcher(self):
        self.assertIsNone(doctor()[1]["launcher"]["found"])
        _, found = doctor(variables={"RANK": "1", "WORLD_SIZE": "65536"})
        self.assertEqual(found["launcher"]["found"], "torchrun")
        self.assertIn("65536 ranks", json.dumps(found["advice"]))
        _, found = doctor(variables={"RANK": "7", "WORLD_SIZE": "2"})
        self.assertIn("RANK=7", found["launcher"]["reason"])


class Frame(unittest.TestCase):
    def test_version(self):
        code, text, _ = ferry("--version")
        self.assertEqual(code, 0)
        self.assertRegex(text, r"^ferry \d+\.\d+\.\d+\n$")

    def test_help_names_the_verbs(self):
        code, text, _ = ferry("--help")
        self.assertEqual(code, 0)
        for verb in ("bench", "launch", "doctor", "topology"):
            self.assertIn(verb, text)
            code, text_of_verb, _ = ferry(verb, "--help")
            self.assertEqual((code, re.findall(r"[^\n -~]", text_of_verb)), (0, []), verb)

    def test_wrong_lines_are_refused(self):
        for arguments in ([], ["fly"], ["doctor", "--fast"], ["doctor", "--", "x"]):
            self.assertEqual(ferry(*arguments)[0], 2, arguments)


if __name__ == "__main__":
    unittest.main()
