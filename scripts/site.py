#!/usr/bin/env python3
"""site.py: the site in build/site, which a browser reads without a server or network: docs/ with README first, the
sources that pages link to, and a reference of Python from docstrings, of C++ and C from headers. A link that leads
nowhere, in a page or to a heading, is an error, and so is what chromium complains of, where there is one. Run by
.venv's Python, with ferry in it; called by scripts/test.sh."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build/site-pages", ROOT / "build/site"
FRONT = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md",
         "SECURITY.md": "SECURITY.md"}
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".c": "c", ".py": "python", ".sh": "bash"}
C_HEADERS = {"ferry.h", "ferry_plan.h", "c_enums.h", "c_structs.h", "c_collectives.h"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)]*)?\)")


def write(page, text):
    path = PAGES / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def place_of(source):
    """The page or file of the site that shows a file of the repository."""
    if source in FRONT:
        return FRONT[source]
    return source[len("docs/"):] if source.startswith("docs/") else f"sources/{source}.md"


def stage(source, page):
    """Copies a page; links to files that no page shows make a page of their source."""
    def relink(match):
        target = match[2]
        if "://" in target:
            return match[0]
        target = os.path.normpath(os.path.join(os.path.dirname(source), target))
        path = ROOT / target
        if path.is_dir():
            sys.exit(f"site.py: {source} links to the folder {target}")
        place = place_of(target)
        if place.startswith("sources/") and path.is_file():
            language = LANGUAGES.get(path.suffix, "text")
            write(place, f"# {target}\n\n``````{language}\n{path.read_text()}``````\n")
        return f"{match[1]}{os.path.relpath(place, os.path.dirname(page) or '.')}{match[3] or ''})"

    write(page, LINK.sub(relink, (ROOT / source).read_text()))


def header_blocks(text):
    """The top-level declarations of a header: (comment, code)."""
    block, depth = [], 0
    for line in text.split("\n"):
        if not line.strip() and depth <= 0:
            yield block
            block = []
            continue
        block.append(line)
        depth += 0 if line.startswith(("namespace", "extern")) else line.count("{") - line.count("}")
        depth = max(depth, 0)
    yield block


def declared_name(code):
    match = re.search(r"^(?:typedef )?(?:class|struct|union|enum class|enum)\s+(?:FERRY_EXPORT\s+)?(\w+)", code, re.M)
    match = match or re.search(r"(\w+)\(", code) or re.search(r"^using (\w+)", code, re.M)
    return match[1] if match else None


def header_reference(header):
    parts = [f"## {header.name}\n"]
    for number, block in enumerate(header_blocks(header.read_text())):
        comment = [line[2:].removeprefix(" ") for line in block[:next(
            (at for at, line in enumerate(block) if not line.startswith("//")), len(block))]]
        code = "\n".join(block[len(comment):])
        if number == 0 and comment:
            parts.append("```text\n" + "\n".join(comment) + "\n```\n")
        name = declared_name(code)
        if not name or code.startswith(("#", "namespace internal", "}")):
            continue
        words = "\n".join(comment)
        parts.append(f"### {name}\n\n{words and f'```text{chr(10)}{words}{chr(10)}```'}\n\n```cpp\n{code}\n```\n")
    return "\n".join(parts)


def write_header_references():
    headers = sorted(path for path in (ROOT / "include/ferry").glob("*.h") if path.name != "export.h")
    for page, title, mine in (("cpp", "C++", lambda name: name not in C_HEADERS), ("c", "C", C_HEADERS.__contains__)):
        parts = [header_reference(header) for header in headers if mine(header.name)]
        write(f"reference/{page}.md", f"# {title} reference\n\nMade from `include/ferry`.\n\n" + "\n".join(parts))


def signature(name, thing):
    native = getattr(thing, "__nb_signature__", None)
    if native:
        return native[0][0]
    try:
        return f"{name}{inspect.signature(thing)}"
    except (TypeError, ValueError):
        return name


def python_entry(level, name, thing):
    parts = [f"{level} {name}\n"]
    if callable(thing) and not inspect.isclass(thing):
        parts.append(f"```python\n{signature(name.rpartition('.')[2], thing)}\n```\n")
    words = inspect.getdoc(thing)
    if words:
        lines = [part for line in words.split("\n") for part in textwrap.wrap(line, 90, drop_whitespace=False) or [""]]
        parts.append("\n".join(["```text", *lines, "```\n"]))
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if not member.startswith("_") and (callable(value) or inspect.isdatadescriptor(value)):
                parts += python_entry("####", f"{name}.{member}", value)
    return parts


def write_python_reference():
    sys.path.pop(0)  # the installed ferry, not a folder of this repository
    import ferry
    import ferry.torch

    parts = ["# Python reference\n", "Made from the docstrings; the guide is [Python](../python.md).\n", "## ferry\n"]
    for module, names in ((ferry, ferry.__all__), (ferry.torch, ferry.torch.__all__)):
        if module is not ferry:
            parts.append(f"## {module.__name__}\n")
        for name in names:
            parts += python_entry("###", f"{module.__name__}.{name}", getattr(module, name))
    write("reference/python.md", "\n".join(parts))


def check_in_browser():
    """Where there is a browser, opens the first page and a search in it. Returns 1 if the browser reports an error or
    the search finds nothing."""
    browser = shutil.which("chromium")
    for page in ("index.html", "search.html?q=deadline") if browser else ():
        with tempfile.TemporaryDirectory() as profile:
            done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                                   f"--user-data-dir={profile}", "--dump-dom", f"file://{SITE}/{page}"],
                                  capture_output=True, text=True, timeout=120)
        told = [line for line in done.stderr.split("\n") if "CONSOLE" in line]
        if told or ("search" in page and not re.search(r'id="found".*?<li>', done.stdout, re.S)):
            print(f"site.py: {page} in a browser:", *told or ["nothing is found"], sep="\n")
            return 1
    return 0


def main():
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs/pictures", PAGES / "pictures")
    for source, page in FRONT.items():
        stage(source, page)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        stage(str(path.relative_to(ROOT)), str(path.relative_to(ROOT / "docs")))
    write_header_references()
    write_python_reference()
    shutil.copy(Path(__file__).with_name("search.md"), PAGES)
    write("site.css", ".md-search, .md-header__button[for=__search] { display: none }\n")
    build = [Path(sys.executable).with_name("mkdocs"), "build", "--strict"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr)
        return done.returncode
    index = (SITE / "search/search_index.json").read_text()
    (SITE / "search/search_index.js").write_text(f"var __index = {index}\n")  # the theme loads it by these names too
    return check_in_browser()


if __name__ == "__main__":
    sys.exit(main())
