#!/usr/bin/env python3
"""Each rule of tidy.py, shown failing and passing. Called by scripts/test.sh."""

import textwrap
import unittest
from pathlib import Path

import commits
import tidy
import tidy_packages

HEAD = "// Owns x.\n"


def broken(name, text):
    """The complaints about `text` in a file called `name`, without the name."""
    return [line.split(": ", 1)[1] for line in tidy.complaints(Path(name), text)]


class Tidy(unittest.TestCase):
    def expect(self, name, bad, good, what):
        self.assertTrue(any(what in line for line in broken(name, bad)), (bad, broken(name, bad)))
        self.assertEqual(broken(name, good), [])

    def test_names(self):
        self.expect("src/base/clock.cc", "x\n", HEAD, "begin with")
        self.assertEqual(broken("src/base/clock.cc", '#include "base/clock.h"\n'), [])
        self.assertIn("says nothing", broken("src/utils/clock.cc", HEAD)[0])
        self.assertIn("says nothing", broken("src/base/helpers.cc", HEAD)[0])

    def test_file_length(self):
        self.expect("src/a.cc", HEAD + "\n" * 400, HEAD + "\n" * 399, "401 lines, at most 400")
        self.expect("tests/a.cc", HEAD + "\n" * 600, HEAD + "\n" * 599, "at most 600")

    def test_lines(self):
        self.expect("src/a.cc", HEAD + "x" * 101, HEAD + "x" * 100, "101 columns")
        self.expect("src/a.cc", HEAD + "\tx", HEAD + "x", "a tab")
        self.expect("README.txt", "x \n", "x\n", "blanks")
        self.expect("src/a.cc", HEAD + "// TODO: y", HEAD + "// y", "unfinished")

    def test_places(self):
        self.expect("docs/a.md", "see /home/me/x", "see docs/home/x", "place outside")
        self.expect("docs/a.md", "see https://x", "see x", "place outside")
        self.expect("docs/a.md", "see example.com", "see example", "place outside")

    def test_headers(self):
        self.expect("src/a.h", HEAD, HEAD + "#pragma once\n", "#pragma once")

    def test_function_length(self):
        def function(lines):
            body = "  if (x) {\n  }\n" * ((lines - 2) // 2)
            return HEAD + "namespace n {\nint f(int x) {\n" + body + "}\n}\n"

        self.expect("src/a.cc", function(72), function(70), "a function of 72 lines")
        table = HEAD + "int table[] = {\n" + "  1,\n" * 100 + "};\n"
        self.assertEqual(broken("src/a.cc", table), [])

    def test_record_names(self):
        row = "| record ring | `number`, `%s` |\n"
        self.expect("docs/protocol.md", row % "refused", row % "growth", "has no member 'refused'")
        self.expect("docs/protocol.md", "x\n", row % "growth", "no table row")
        model = "bit record_begin[R];\nbit record_%s[R];\n"
        self.expect("tests/model/exchange.pml", model % "refused", model % "growth", "has no member 'refused'")

    def test_classes(self):
        def fields(count):
            head = HEAD + "class A : public B {\n  int f(int x) { return x; }\n  using T = int;\n"
            return head + "  std::map<int, T> x_ = {};\n" * count + "};\n"

        self.expect("src/a.cc", fields(16), fields(15), "A has 16 data members, at most 15")
        self.expect("src/a.cc", fields(1).replace("};", "\n" * 150 + "};"), fields(1), "lines, at most 150")
        self.expect("src/a.cc", HEAD + "struct A {\n" + "  int a, b = 1;\n" * 8 + "};\n", fields(2), "16 data members")

    def test_types_defined_twice(self):
        def defines(kind, namespace="ferry::internal"):
            return HEAD + f"namespace {namespace} {{\n{kind} WindowLayout final : Base {{\n}};\n}}\n"

        what = "src/memory/window_layout.h defines a type WindowLayout too"
        self.expect("src/base/a.cc", defines("class"), defines("class", "other"), what)
        self.expect("src/base/a.cc", defines("struct alignas(64)"), defines("class").replace("Layout", "s"), what)
        unnamed = defines("class").replace("class", "namespace {\nclass") + "}\n"
        self.assertEqual(broken("src/base/a.cc", unnamed), [])

    def test_prose_of_comments(self):
        def told(comment):
            return HEAD + f"int x = 1;  {comment}\n\n{comment}\n"

        folder = tidy.CLEAN_COMMENTS
        tidy.CLEAN_COMMENTS = ("src/base/",)
        self.addCleanup(setattr, tidy, "CLEAN_COMMENTS", folder)
        self.expect("src/base/a.cc", told("// Of a row."), told("// Bytes of a row."), "has no subject")
        self.expect("src/base/a.cc", told("// It is in my window."), told("// It is in mymap."), "'my' in a comment")
        self.expect("src/base/a.cc", told("// I look."), told("// The matrix is (H, I), `mine` its name."), "'I ' in a comment")
        self.expect("src/base/a.cc", told("// Called by b.cc."), told("// Is called once."), "not who includes it")
        self.assertEqual(broken("src/memory/a.cc", told("// Of my row.")), [])

    def test_allowed_includes(self):
        down, up = '#include "exchange/state.h"\n', '#include "base/clock.h"\n'
        self.expect("src/base/a.cc", HEAD + down, HEAD + up, "base may not include from exchange")
        self.expect("src/topology/a.cc", HEAD + '#include "routing/route.h"\n', HEAD + up, "topology may not")
        self.expect("src/capi/a.cc", HEAD + up, HEAD + '#include "ferry/group.h"\n', "capi may not")
        state, parts = '#include "exchange/state.h"\n', '#include "exchange/parts/parts.h"\n'
        self.expect("src/exchange/dispatch/a.cc", HEAD + state, HEAD + parts, "exchange/dispatch may not")
        self.expect("src/exchange/protocol/a.cc", HEAD + parts, HEAD + up, "exchange/protocol may not")
        self.expect("src/exchange/new/a.cc", HEAD + parts, HEAD + up, "exchange/new may not include from exchange/parts")
        for folders in tidy.MAY_INCLUDE, tidy.MAY_INCLUDE_IN_EXCHANGE:
            seen = set()
            for folder, allowed in folders.items():
                self.assertLessEqual(allowed, seen, "a circle")
                seen.add(folder)

    def test_retired_words(self):
        self.expect("src/a.cc", HEAD + "int num_tiers;", HEAD + "int frontier;", "'tiers' is retired: level")
        self.expect("docs/a.md", "A MailBox.", "A third party, on GitHub.", "'Mail' is retired")
        self.expect("docs/a.md", "Their duties.", "An email.", "'duties' is retired")

    def test_targets(self):
        self.expect("CONTRIBUTING.md", "`make nothing`", "`make test`", "no target 'nothing'")
        self.expect("CONTRIBUTING.md", "--target no_test", "--target exchange_test", "no target 'no_test'")
        self.expect("CONTRIBUTING.md", "ctest --preset release -R zebra", "ctest --preset release -R exchange.faults", "no test")
        self.expect("CONTRIBUTING.md", "cmake --preset none", "cmake --preset tsan", "no preset")
        self.expect("CONTRIBUTING.md", "test.sh tidy none", "test.sh tidy clang-tidy", "no step 'none'")

    def test_memory_orders(self):
        good = HEAD + "x = flag->load(std::memory_order_acquire);\n// .load()\n"
        self.expect("src/a.cc", HEAD + "x = flag->load();\n", good, "load() without")
        self.expect("src/a.cc", HEAD + "flag.store(f(1), 2);\n", good, "store() without")
        self.expect("src/a.cc", HEAD + "flag.fetch_add(1);\n", good, "fetch_add() without")

    def test_environment(self):
        setenv = HEAD + 'setenv("A", "1", 1);\n'
        self.expect("src/a.cc", setenv, HEAD + 'environment("A");\n', "environment")
        self.assertEqual(broken("tools/a.cc", setenv), [])
        getenv = HEAD + 'getenv("A");\n'
        self.expect("tools/a.cc", getenv, HEAD + 'environment("A");\n', "src/base/environment.cc read")
        self.assertEqual(broken("src/aclnn/environment.cc", getenv), [])
        self.assertEqual(broken("tests/a.cc", getenv), [])
        table = (tidy.ROOT / "docs/environment.md").read_text()
        self.expect("docs/environment.md", table.replace("1 to 65535", "1 to 65536"), table, "FERRY_PORT")
        self.expect("docs/environment.md", table.replace("| `FERRY_LOG`", "`FERRY_LOG`"), table, "FERRY_LOG")

    def test_links(self):
        self.expect("docs/a.md", "[x](none.md)", "[x](protocol.md#words)", "no file 'none.md'")

    def test_token_journey(self):
        name, file = "docs/token_journey.md", "`src/base/types.cc`"
        step = f"| 1 | a | {file} `element_bytes` |\n"
        good = f"## Inside one host\n{step}"
        other = [f"| {i} | a | `src/base/{i}.cc` `f` |\n" for i in range(5)]
        self.expect(name, good.replace("element_bytes", "nothing"), good, "no function 'nothing'")
        self.expect(name, good + "`src/base/none.cc`\n", good, "no file 'src/base/none.cc'")
        self.expect(name, "## Inside one host\nwords\n", good, "enters 0 files, need 1 to 5")
        self.expect(name, good + "".join(other), good, "enters 6 files, need 1 to 5")
        self.assertNotIn("need 1 to 8", str(broken(name, good.replace("Inside one host", "between") + "".join(other))))
        self.expect(name, good + step, good, "enters a file twice")

    def test_readme(self):
        example = (tidy.ROOT / "examples/python/quickstart.py").read_text()
        good = f"```python\n{example}```\n"
        self.expect("README.md", good.replace("2 * tokens", "3 * tokens"), good, "equals examples/python/quickstart.py")
        self.expect("README.md", good + "line\n" * 120, good, "at most 120 lines")
        good = (tidy.ROOT / "docs/c_abi.md").read_text()
        self.expect("docs/c_abi.md", good.replace("#include <ferry/ferry.h>", ""), good, "equals examples/dispatch_combine.c")

    def test_lowest_python(self):
        good = (tidy.ROOT / "pyproject.toml").read_text()
        for file in "python/CMakeLists.txt", "docs/install.md":
            self.expect("pyproject.toml", good.replace(">=3.10", ">=3.9"), good, f"Python 3.9, but 3.10 in {file}")
        self.expect("pyproject.toml", good.replace("requires-python", "python"), good, "no requires-python")

    def test_distribution_name(self):
        what = "another project on the package index"
        for bad in ("pip install ferry", "`pip install 'ferry[ucx]'`", "pip3 install -U numpy ferry==0.2", "pip install ferry.",
                    '"$venv/bin/pip" install --quiet \\\n  --find-links x ferry', '[python, "-m", "pip", "install", "ferry"]',
                    "Install ferry[ucx] (pip).", "pip install ferry-ep ferry", "pip download ferry", 'metadata.version("ferry")',
                    "pipx install ferry", "uvx ferry bench", "uv add ferry", "uv tool install 'ferry>=0.2'", "poetry add ferry",
                    'dependencies = ["numpy", "ferry>=0.2"]'):
            self.expect("docs/a.txt", bad, "x\n", what)
        for good in ("pip install .", "pip install './ferry'", "pip install ferry-ep", "pip install 'ferry-ep[ucx]' # ferry",
                     "pip install ferry/", "pip install build/wheel/ferry_ep-*.whl", "pip install ../ferry", "pip installed ferry",
                     "`pip install .` installs ferry", "pip uninstall ferry", "pip install $ferry", "pip install ~/ferry[ucx]",
                     "uv run ferry bench", "uvx --from ferry-ep x", "pipx install ferry-ep", '"ferry" == "ferry"', '"ferry-ep>=0.2"'):
            self.assertEqual(broken("docs/a.txt", good), [], good)
        self.assertIn("docs/a.txt:3: ", tidy.complaints(Path("docs/a.txt"), "a \\\nb\npip install ferry").__next__())
        self.expect("scripts/requirements-x.txt", "numpy\nferry>=0.2\n", "numpy\nferry-ep\n", what)
        project = (tidy.ROOT / "pyproject.toml").read_text()
        self.expect("pyproject.toml", project.replace('"ferry-ep"', '"ferry"'), project, "is not called ferry-ep")

    def test_programs_of_venv(self):
        for name in "scripts/a.sh", "Makefile":
            self.expect(name, "#!/bin/bash\n# a\n.venv/bin/pip install .\n", "#!/bin/bash\n# a\n.venv/bin/python -m pip install .\n",
                        "'.venv/bin/pip': .venv/bin/python -m pip")

    def test_one_version(self):
        minor, version = tidy_packages.version_of((tidy.ROOT / "CMakeLists.txt").read_text())
        self.assertTrue(version.startswith(minor + "."))
        what = f"but CMakeLists.txt has version {version}"
        for name in "libferry%s", "libferry-cann%s", "libferry-plan%s", "libferry.so.%s", "find_package(ferry %s REQUIRED)":
            self.expect("docs/a.txt", "x\n" + name % "9.9", "x\n" + name % minor, what)
        heading = "# Changes\n\nlibferry.so.%s\n\n## %s, not released\n\n## 0.1.0, 2020-01-01\n\nlibferry0.1\n"
        self.expect("CHANGELOG.md", heading % (minor, "9.9.9"), heading % (minor, version), f"not '## {version}, DATE'")
        self.expect("CHANGELOG.md", heading % ("9.9", version), heading % (minor, version), what)
        project = (tidy.ROOT / "pyproject.toml").read_text()
        for part in 'dynamic = ["version"]', 'input = "CMakeLists.txt"':
            self.expect("pyproject.toml", project.replace(part, 'version = "1"'), project, "not taken from CMakeLists.txt")

    def test_tutorial(self):
        good = (tidy.ROOT / "docs/tutorial.md").read_text()
        self.expect("docs/tutorial.md", good.replace("run_threads(4", "run_threads(3"), good, "step1_threads.py")

    def test_lines_of_pages(self):
        self.expect("docs/a.md", "x" * 121, "x" * 120, "121 columns, at most 120")
        for free in "| " + "x" * 120 + " |", "```\n" + "x" * 121 + "\n```", "    " + "x" * 121, "![x](" + "../" * 40 + "README.md)":
            self.assertEqual([line for line in broken("docs/a.md", free) if "columns" in line], [], free)

    def test_sentences_of_pages(self):
        def sentence(words):
            return "word " * (words - 1) + "word."

        for head in "", "* ", "1. ":
            self.expect("docs/a.md", wrap(head + sentence(41)), wrap(head + sentence(40)), "a sentence of 41 words")
        self.assertEqual(broken("docs/a.md", wrap(f"{sentence(30)} {sentence(30)}")), [])
        self.assertEqual(broken("docs/a.md", wrap(f"{sentence(30)[:-1]} `{sentence(30)}` {sentence(9)}")), [])
        self.assertEqual(broken("docs/a.md", f"{sentence(20)[:-1]}\n\n    {sentence(20)}\n\n{sentence(20)}\n"), [])
        self.assertIn("of 60 words", str(broken("README.md", wrap(f"{sentence(30)[:-1]} {sentence(30)}"))))
        _, version = tidy_packages.version_of((tidy.ROOT / "CMakeLists.txt").read_text())
        old = f"## {version}, not released\n\nx\n\n## 0.1\n\n"
        self.expect("CHANGELOG.md", old.replace("x", wrap(sentence(41))), old + wrap(sentence(41)), "of 41 words")

    def test_first_person_on_pages(self):
        for bad in "I wait.", "a rank of mine", "my rows", "tell me":
            self.expect("docs/a.md", bad, "this rank waits, H 2048, I 768, `[2 I, H]`", "say which rank")

    def test_design_numbers(self):
        for name in "docs/a.md", "src/a.h":
            bad = "// in the order of " + "design 5.\n#pragma once\n"
            self.expect(name, bad, bad.replace("design 5", "docs/numerics.md"), "name a page of docs/")


def wrap(text):
    return "\n".join(textwrap.wrap(text, 100)) + "\n"


class Commits(unittest.TestCase):
    def test_subjects(self):
        good = {"1": "group: a wait blames nobody", "2": "plan, placement: one loop"}
        self.assertEqual(list(commits.complaints(good)), [])
        for bad, what in (("x: " + "y" * 70, "73 characters"), ("A wait blames nobody", "no area"),
                          ("group: a wait blames nobody", "the same subject as 1")):
            self.assertIn(what, list(commits.complaints({**good, "3": bad}))[0])


if __name__ == "__main__":
    unittest.main()
