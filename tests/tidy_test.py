#!/usr/bin/env python3
"""Each rule of tidy.py, shown failing and passing. Called by scripts/test.sh."""

import unittest
from pathlib import Path

import tidy

HEAD = "// Owns x. Called by y.\n"


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

    def test_memory_orders(self):
        good = HEAD + "x = flag->load(std::memory_order_acquire);\n// .load()\n"
        self.expect("src/a.cc", HEAD + "x = flag->load();\n", good, "load() without")
        self.expect("src/a.cc", HEAD + "flag.store(f(1), 2);\n", good, "store() without")
        self.expect("src/a.cc", HEAD + "flag.fetch_add(1);\n", good, "fetch_add() without")

    def test_environment(self):
        setenv = HEAD + 'setenv("A", "1", 1);\n'
        self.expect("src/a.cc", setenv, HEAD + 'getenv("A");\n', "environment")
        self.assertEqual(broken("tools/a.cc", setenv), [])

    def test_links(self):
        self.expect("docs/a.md", "[x](none.md)", "[x](protocol.md#words)", "no file 'none.md'")

    def test_token_journey(self):
        name, file = "docs/token_journey.md", "`src/base/types.cc`"
        good = f"| {file} `element_bytes` |\n"
        self.expect(name, f"| {file} `nothing` |\n", good, "no function 'nothing'")
        self.expect(name, good + "`src/base/none.cc`\n", good, "no file 'src/base/none.cc'")
        self.expect(name, "words\n", good, "names no file with")

    def test_readme(self):
        native = (tidy.ROOT / "examples/dispatch_combine.cc").read_text()
        python = (tidy.ROOT / "examples/python/moe_layer.py").read_text()
        good = f"```cpp\n{native}```\n```python\n{python}```\n"
        self.expect("README.md", good.replace("kTokens = 16", "kTokens = 17"), good, "equals examples/dispatch_combine.cc")
        self.expect("README.md", good.replace("topk(2)", "topk(3)"), good, "equals examples/python/moe_layer.py")


if __name__ == "__main__":
    unittest.main()
