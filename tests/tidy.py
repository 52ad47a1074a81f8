#!/usr/bin/env python3
"""The house rules that no compiler checks. Each rule is a function that takes a file and yields the
lines it complains of. Called by scripts/test.sh; tidy_test.py shows each rule failing."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = {".cc", ".c", ".h", ".py", ".sh", ".cmake", ".pml"}
CPP = {".cc", ".h"}
MAX_COLUMNS = {True: 100, False: 120}  # C++, as clang-format has it; everything else
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = {"tests": 600, "": 400}


def is_code(path):
    return path.suffix in CODE or path.name == "CMakeLists.txt"


def blank_out(text):
    """C++ without comments, strings and preprocessor lines; every line keeps its number."""
    comment, preprocessor = r"//[^\n]*|/\*.*?\*/", r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
    string = r'"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])'"
    pattern = f"{comment}|{string}|{preprocessor}"
    return re.sub(pattern, lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)


def line_at(text, position):
    return text.count("\n", 0, position) + 1


# ---- one file


def names(path, text):
    for part in path.with_suffix("").parts:
        if part in {"utils", "util", "common", "misc", "helpers", "helper"}:
            yield 1, f"'{part}' says nothing; name the noun or verb that is inside"


def length(path, text):
    limit = MAX_FILE_LINES.get(path.parts[0], MAX_FILE_LINES[""])
    lines = text.count("\n")
    if is_code(path) and lines > limit:
        yield lines, f"{lines} lines, at most {limit}"


def lines(path, text):
    columns = MAX_COLUMNS[path.suffix in CPP]
    for number, line in enumerate(text.split("\n"), 1):
        if is_code(path) and len(line) > columns:
            yield number, f"{len(line)} columns, at most {columns}"
        if "\t" in line and path.name != "Makefile":
            yield number, "a tab"
        if line != line.rstrip():
            yield number, "blanks at the end of the line"
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            yield number, "unfinished work belongs into an issue"


def places(path, text):
    """No file knows a machine, a network or a person's home."""
    text = text.replace("http://www.w3.org/2000/svg", "")  # the name of a format, not a place
    host, folder = r"https?://|\b[\w-]+\.(?:com|org|net)\b", r"(?<![\w./-])/(?:work|root|home)/\w"
    for match in re.finditer(f"{host}|{folder}", text):
        yield line_at(text, match.start()), f"'{match[0]}' is a place outside this repository"


def first_line(path, text):
    told_by_header = text.startswith("#include") and f"/{path.stem}.h" in text.partition("\n")[0]
    if path.suffix in CPP and not text.startswith("// ") and not told_by_header:
        yield 1, "begin with what the file owns, who calls it, what it calls"
    if path.suffix == ".h" and "#pragma once" not in text and not path.name.endswith("-inl.h"):
        yield 1, "#pragma once is missing"


def function_length(path, text):
    """A brace whose head has parentheses, outside any function, opens a function."""
    if path.suffix not in CPP:
        return
    code, head, opened, start = blank_out(text), 0, [], 0
    for match in re.finditer(r"[{};]", code):
        position, sign = match.start(), match[0]
        if sign == "{":
            declaration, parenthesis, _ = code[head:position].partition("(")
            is_function = parenthesis and "=" not in declaration and "function" not in opened
            opened.append("function" if is_function else "scope")
            start = line_at(code, position) if is_function else start
        elif sign == "}" and opened and opened.pop() == "function":
            count = line_at(code, position) - start + 1
            if count > MAX_FUNCTION_LINES:
                yield start, f"a function of {count} lines, at most {MAX_FUNCTION_LINES}"
        head = position + 1


def memory_orders(path, text):
    if path.suffix not in CPP:
        return
    code = blank_out(text)
    atomic_call = r"(?:\.|->)(load|store|fetch_\w+|compare_exchange_\w+|test_and_set)\("
    for match in re.finditer(atomic_call, code):
        if "memory_order" not in arguments(code, match.end()):
            yield line_at(code, match.start()), f"{match[1]}() without a memory order"


def arguments(code, position):
    """The text up to the parenthesis that closes the one just before `position`."""
    depth = 1
    for end in range(position, len(code)):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if depth == 0:
            return code[position:end]
    return code[position:]


def environment_writes(path, text):
    if path.suffix in CPP and path.parts[0] not in {"tools", "tests"}:
        code = blank_out(text)
        for match in re.finditer(r"\b(?:setenv|putenv|unsetenv|clearenv)\(", code):
            yield line_at(code, match.start()), "the library never changes the environment"


# ---- documents


def links(path, text):
    if path.suffix == ".md":
        for match in re.finditer(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not (ROOT / path.parent / match[1]).exists():
                yield line_at(text, match.start()), f"no file '{match[1]}'"


def token_journey(path, text):
    """Every `file` exists, and where it is followed by a `function`, has that function."""
    if path.name != "token_journey.md":
        return
    for match in re.finditer(r"`((?:include|src|docs|tools|tests)/[\w./-]+)`(?: `(\w+)`)?", text):
        file, function = match.groups()
        if not (ROOT / file).exists():
            yield line_at(text, match.start()), f"no file '{file}'"
        elif function and not re.search(rf"\b{function}\(", (ROOT / file).read_text()):
            yield line_at(text, match.start()), f"no function '{function}' in {file}"
    if not re.search(r"`src/[\w./-]+` `\w+`", text):
        yield 1, "names no file with its function"


def record_names(path, text):
    """The protocol's page and its model name the members of a record as the code does."""
    if str(path) == "docs/protocol.md":
        row = re.search(r"^\| record ring \|.*$", text, flags=re.M)
        found = re.finditer(r"`(\w+)`", row[0]) if row else []
        start = row.start() if row else 0
        if not row:
            yield 1, "no table row says what is in the record ring"
    elif str(path) == "tests/model/exchange.pml":
        found, start = re.finditer(r"\brecord_(?!begin\b|end\b)(\w+)\[", text), 0
    else:
        return
    members = set(re.findall(r"\b(\w+)(?: = [^;]+| \{\}|\[\d+\] = \{\})?;", (ROOT / "src/exchange/record.h").read_text()))
    for match in found:
        if match[1] not in members:
            yield line_at(text, start + match.start()), f"src/exchange/record.h has no member '{match[1]}'"


def readme_examples(path, text):
    if str(path) == "README.md":
        example = "examples/python/quickstart.py"
        if (ROOT / example).read_text() not in re.findall(r"```python\n(.*?)```", text, flags=re.S):
            yield 1, f"no block that equals {example}"
        if text.count("\n") > 150:
            yield 151, "a README that is read has at most 150 lines"


RULES = [names, length, lines, places, first_line, function_length, memory_orders]
RULES += [environment_writes, links, token_journey, record_names, readme_examples]
QUOTES_THE_RULES = {"tests/tidy.py", "tests/tidy_test.py"}


def complaints(path, text):
    """path is relative to the root of the repository."""
    if str(path) == "LICENSE":
        return
    for rule in RULES:
        if str(path) not in QUOTES_THE_RULES or rule not in {lines, places}:
            yield from (f"{path}:{number}: {what}" for number, what in rule(path, text))


def repository_files():
    for folder, folders, files in os.walk(ROOT):
        skipped = re.compile(r"build.*|__pycache__|\.(?!ci$|github$).*")
        folders[:] = sorted(name for name in folders if not skipped.fullmatch(name))
        yield from (Path(folder, name).relative_to(ROOT) for name in sorted(files) if name != ".git")  # a worktree


def main():
    found = []
    for path in repository_files():
        try:
            found += complaints(path, (ROOT / path).read_text())
        except UnicodeDecodeError:
            continue  # a picture
    print("\n".join(found + [f"tidy: {len(found)} complaints"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
