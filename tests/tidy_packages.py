"""The rules of tidy.py about packages. `ferry` on the Python package index belongs to another project, so that the
distribution is ferry-ep; the module and the command are ferry."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The name alone, with extras or a version behind it: no path, and neither ferry-ep nor ferry_ep.
OTHER = r"(?<![\w./~$-])ferry(?:\[[^\]\n]*\])?(?![\w/-]|\.\w|\[)"
INSTALL = (r"""\b(?:pip[\d.]*["'}]*,?\s+["']?(?:install|download|wheel|show)|pipx\s+(?:install|run)|uvx|"""
           r"""uv\s+(?:add|tool\s+(?:install|run))|(?:poetry|pdm)\s+add)\b["']?([^\n`|;&)]*)""")
QUERY = r"""\b(?:version|distribution|requires|metadata|files)\(["']ferry["']\)"""
REQUIREMENT = r"""(?<=["'])ferry ?(?:[<>=!~]=|[<>@])[^"'\n]*(?=["'])"""
EXTRA = r"(?<![\w./-])ferry\[(?:ucx|torch|numpy|plot|transformers|vllm|jax|compare)\b[^\]\n]*\]"


def distribution_name(path, text):
    """No command, message or list of requirements names the project `ferry` of the index."""
    text = text.replace("\\\n", "\\\0")  # a command of several lines
    line_at = lambda position: len(re.findall(r"[\n\0]", text[:position])) + 1
    found = [(command.start(), re.search(OTHER, re.split(r"\s#", command[1])[0])) for command in re.finditer(INSTALL, text)]
    found += [(match.start(), match) for match in re.finditer(f"{EXTRA}|{QUERY}|{REQUIREMENT}", text)]
    if path.name.startswith("requirements") and path.suffix == ".txt":
        found += [(match.start(), match) for match in re.finditer(r"^ferry(?![\w-]).*$", text, flags=re.M)]
    for line, name in sorted({(line_at(position), match[0]) for position, match in found if match}):
        yield line, f"'{name}' is another project on the package index: ferry-ep, or a path such as ./ferry"
    if str(path) == "pyproject.toml" and '\nname = "ferry-ep"\n' not in text:
        yield 1, 'the distribution is not called ferry-ep: name = "ferry-ep"'


def programs_of_venv(path, text):
    """A script calls what is in .venv by Python's -m. The programs in .venv/bin name the place where .venv was made, so
    in a tree that was moved or copied they work on the old one."""
    if path.suffix == ".sh" or path.name in ("Makefile", "run"):
        for match in re.finditer(r"(?<![\w/$])\.venv/bin/(?!python)(\w+)", text):
            yield text.count("\n", 0, match.start()) + 1, f"'{match[0]}': .venv/bin/python -m {match[1]}"


def version_of(text):
    """Major and minor version, and the whole, that CMakeLists.txt states: the one source of the version."""
    found = re.search(r"^project\(ferry VERSION ((\d+\.\d+)\.\d+)", text, flags=re.M)
    return (found[2], found[1]) if found else ("", "")


def one_version(path, text):
    """Names of libraries and packages, and the top section of the changes, have the version of CMakeLists.txt."""
    minor, version = version_of((ROOT / "CMakeLists.txt").read_text())
    if str(path) == "CHANGELOG.md":
        headings = list(re.finditer(r"^## (\S+), (?:not released|\d{4}-\d\d-\d\d)$", text, flags=re.M))
        if not headings or headings[0][1] != version:
            yield 1, f"the top section is not '## {version}, DATE' or '## {version}, not released'"
        text = text[: headings[0].end()] if headings else ""
    for match in re.finditer(r"libferry(?:-cann|-plan|\.so\.)?(\d+\.\d+)|find_package\(ferry (\d+\.\d+)", text):
        if (match[1] or match[2]) != minor:
            yield text.count("\n", 0, match.start()) + 1, f"'{match[0]}', but CMakeLists.txt has version {version}"
    if str(path) == "pyproject.toml" and (not re.search(r'^dynamic = \["version"\]$', text, flags=re.M)
                                          or 'input = "CMakeLists.txt"' not in text):
        yield 1, "the version is not taken from CMakeLists.txt"
