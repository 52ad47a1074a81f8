"""Commands on pages: their options, targets and files exist, and commands that need nothing else are run."""

import functools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ferry.__main__ import NATIVE

ROOT = Path(__file__).resolve().parents[2]
FRONT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*map(ROOT.joinpath, FRONT), *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = ("trace record", "trace diff", "trace routing", *NATIVE, "plot", "compare")
MODULES = r"python3? -m (ferry[\w.]*)"


def commands_on(page):
    """Every command of ferry on a page: lines of blocks and words in backticks; each part of a launch is an entry."""
    text = page.read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M)
    fenced = [line for language, block in fenced if language in ("", "sh") for line in block.split("\n")]
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    blocks = [*fenced, *re.findall(r"^    (?:\$ )?(.+(?:\\\n.*)*)", text, flags=re.M)]
    inline = re.findall(r"`([^`]+)`", text)
    for words in (*blocks, *inline):
        words = re.sub(r"\\?\n\s*", " ", words).partition(" #")[0]
        for part in re.split(r" -- | > |; ", words):
            found = re.search(rf"(?:^|\s|=)(?:ferry ({'|'.join(COMMANDS)})|{MODULES})(?=\s|$)", part)
            if found:
                yield found[1], found[2], part[found.end():]


FOUND = [(page.name, *found) for page in PAGES for found in commands_on(page)]


@functools.lru_cache(maxsize=None)
def options_of(command, module):
    words = ["ferry", *command.split()] if command else [module]
    done = subprocess.run([sys.executable, "-m", *words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", done.stdout))


def test_commands_are_found_on_the_pages_that_have_them():
    assert {"README.md", "gallery.md", "hosts.md", "planning.md", "topology.md", "top.md", "deep_ep_programs.md"} <= \
        {page for page, *_ in FOUND}
    assert len(FOUND) > 50


@pytest.mark.parametrize("command, module", sorted({found[1:3] for found in FOUND}, key=str))
def test_every_option_is_one_that_help_names(command, module):
    for page, _, _, rest in (found for found in FOUND if found[1:3] == (command, module)):
        options = re.findall(r"(?<=\s)\[?(--?[a-z][\w-]*)", rest.partition(".py")[0])
        unknown = set(options) - options_of(command, module)
        assert not unknown, f"{page}: {command or module}{rest}"


def test_targets_of_make_and_files_in_commands_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"(?:`|^    |^\| `)make ([\w-]+)", text, flags=re.M):
            assert target in targets, f"{page.name}: make {target}"
        folders = "scripts|examples|tests|tools|cmake"
        for file in re.findall(rf"(?:^    |^|[` ])((?:{folders})/[\w./-]+\w)", text, flags=re.M):
            assert (ROOT / file).exists(), f"{page.name}: {file}"


PURE = [(page, command, rest) for page, command, _, rest in FOUND
        if command in ("plan", "topology") and re.match(r" [a-z][\w.]*\d", rest) and ".json" not in rest]


@pytest.mark.parametrize("page, command, rest", PURE)
def test_commands_that_need_nothing_run(page, command, rest):
    done = subprocess.run([sys.executable, "-m", "ferry", command, *shlex.split(rest)], capture_output=True, text=True)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_the_json_of_a_topology_is_read(tmp_path):
    (text,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs/topology.md").read_text(), flags=re.S)
    (tmp_path / "t.json").write_text(text)
    done = subprocess.run([sys.executable, "-m", "ferry", "topology", tmp_path / "t.json"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_blocks_of_c_compile():
    blocks = re.findall(r"```c\n(.*?)```", (ROOT / "docs/c_abi.md").read_text(), flags=re.S)
    assert len(blocks) == 3
    for block in blocks:
        if "int main" not in block:
            block = f"#include <ferry/ferry.h>\nint main(void) {{\n{block}(void)stats; (void)config;\nreturn 0; }}\n"
        command = ["cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I", ROOT / "include", "-xc", "-"]
        done = subprocess.run(command, input=block, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
