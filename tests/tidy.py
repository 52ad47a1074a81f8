#!/usr/bin/env python3
"""The house rules that no compiler checks. Each rule is a function that takes a file and yields the
lines it complains of. Called by scripts/test.sh; tidy_test.py shows each rule failing."""

import functools
import os
import re
import sys
from pathlib import Path

from tidy_packages import distribution_name, one_version, programs_of_venv

ROOT = Path(__file__).resolve().parent.parent
CODE = {".cc", ".c", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake", ".pml"}
CPP = {".cc", ".h", ".cu", ".cuh"}
MAX_COLUMNS = {True: 100, False: 120}  # C++, as clang-format has it; everything else
MAX_FUNCTION_LINES = 70
MAX_WORDS = 40  # of a sentence of a page

MAX_FILE_LINES = {"tests": 600, "": 400}
MAX_CLASS_LINES, MAX_MEMBERS = 150, 15

# The folders of src that a folder may include from, besides itself. Each names only folders above it: no circles.
MAY_INCLUDE = {
    "base": set(),
    "kernels": {"base"},
    "memory": {"base"},
    "topology": {"base"},
    "routing": {"base", "topology"},
    "traffic": {"base", "kernels", "topology", "routing"},
    "network": {"base", "memory"},
    "bootstrap": {"base", "memory", "network"},
    "group": {"base", "memory", "topology", "network", "bootstrap"},
    "plan": {"base", "topology", "traffic"},
    "exchange": {"base", "kernels", "memory", "topology", "routing", "network", "bootstrap", "group", "traffic"},
    "capi": set(),  # this one and the next two stand on the public headers, as a user does, and on FERRY_CHECK
    "cann": set(),
    "aclnn": {"cann"},
    "layer": {"base", "exchange"},
    "cuda": {"base", "kernels", "memory", "routing", "group", "exchange"},
}
# The same for the folders inside src/exchange. Its files outside them make the whole of the parts: no part includes
# one of those.
MAY_INCLUDE_IN_EXCHANGE = {
    "setup": set(),
    "sums": set(),
    "workers": set(),
    "internode": {"setup", "sums", "workers"},
    "ways": {"setup", "workers", "internode"},
    "protocol": {"setup", "ways"},
    "arguments": {"setup", "protocol"},
    "trace": {"setup"},
    "parts": {"setup", "sums", "workers", "ways", "protocol", "trace"},
    "dispatch": {"setup", "internode", "ways", "protocol", "arguments", "parts"},
    "combine": {"setup", "sums", "internode", "ways", "protocol", "arguments", "parts"},
}

# Words that were replaced (docs/glossary.md says by which), as parts of names too.
RETIRED = {
    "border": "forwarding table",
    "tier": "level",
    "crossing": "way",
    "forwarder": "way",
    "mail": "message channel",
    "duty": "sum request",
    "weather": "network chaos",
    "crew": "worker pool",
    "party": "member",
    "hub": "coordinator",
    "spoke": "member",
    "star": "coordinator and members",
    "door": "acceptor",
    "entrance": "acceptor",
}

# Folders whose comments keep the rules of prose_of_comments(); the others follow.
CLEAN_COMMENTS = ("include/ferry/", "src/", "tools/", "tests/base/", "tests/bootstrap/", "tests/kernels/", "tests/memory/",
                  "tests/network/", "tests/plan/", "tests/python/")

PLAIN_ENGLISH = r"[Tt]hird[- ]part(?:y|ies)|GitHub|torch\.hub"  # what is meant by none of these


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
        yield 1, "begin with what the file owns"
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


def classes(path, text):
    """Of every class and struct: lines of declaration, and data members (of src and tools; a struct of options has as
    many as it has options)."""
    if path.suffix not in CPP or path.parts[0] not in {"src", "tools", "include"}:
        return
    code = blank_out(text)
    for match in re.finditer(r"(?<!enum )\b(?:class|struct)\s+(?:\w+\s+)*?(\w+)(?:\s+final)?(?:\s*:[^;{(]*)?\s*\{", code):
        body = inside(code, match.end())
        lines = body.count("\n") + 1
        if lines > MAX_CLASS_LINES:
            yield line_at(code, match.start()), f"{match[1]} has {lines} lines, at most {MAX_CLASS_LINES}"
        members = data_members(body)
        if len(members) > MAX_MEMBERS and path.parts[0] != "include" and not match[1].endswith("Options"):
            yield line_at(code, match.start()), f"{match[1]} has {len(members)} data members, at most {MAX_MEMBERS}"


def inside(code, position, opening="{", closing="}"):
    """The text up to the brace that closes the one just before `position`."""
    depth = 1
    for end in range(position, len(code)):
        depth += (code[end] == opening) - (code[end] == closing)
        if depth == 0:
            return code[position:end]
    return code[position:]


def data_members(body):
    """The declarations of a class body that are neither functions nor types."""
    while re.search(r"\{[^{}]*\}", body):  # bodies, nested types and initialisers
        body = re.sub(r"\{[^{}]*\}", "\0", body)
    body = re.sub(r"\b(?:public|protected|private)\s*:", "", body)
    found = []
    for statement in re.split(r";|(?<=\))[\w\s]*\0(?!\s*[,;])", body):
        is_type = re.match(r"\s*(?:using|typedef|friend|static|enum|class|struct|union|template|FERRY_\w+)\b", statement)
        declared = re.sub(r"<[^<>()]*(?:<[^<>]*>[^<>]*)*>|<.*>", "", statement.split("=")[0].split("\0")[0])
        is_type = is_type or re.search(r"\boperator\b", statement)
        if not is_type and re.search(r"\w\s+[*&]?\s*\w|[*&>]\s*\w|\w\s*[*&]\s*\w", statement) and "(" not in declared:
            found += declared.split(",")
    return found


def type_names(text):
    """(name, line) of each type that is defined in ferry::internal itself: not in an unnamed namespace or a class."""
    code, scopes, head = blank_out(text), [], 0
    define = r"\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:\w+\s+)*?(\w+)\s*(?:\bfinal\s*)?(?::(?!:).*)?$"
    for match in re.finditer(r"[{};]", code):
        declaration = re.sub(r"\balignas\([^()]*\)", "", code[head : match.start()])
        namespace = re.search(r"\bnamespace\s*([\w:]*)\s*$", declaration)
        defined = None if re.search(r"[=(]", declaration) else re.search(define, declaration.strip(), flags=re.S)
        if match[0] == "{":
            if defined and "::".join(scopes) == "ferry::internal":
                yield defined[1], line_at(code, match.start())
            scopes.append(namespace[1] if namespace else "")
        elif match[0] == "}" and scopes:
            scopes.pop()
        head = match.end()


@functools.cache
def engine_types():
    """{name: files} of the types that src defines in ferry::internal."""
    types = {}
    for path in repository_files():
        if path.parts[0] == "src" and path.suffix in CPP:
            for name, _ in type_names((ROOT / path).read_text()):
                types.setdefault(name, set()).add(str(path))
    return types


def types_defined_twice(path, text):
    """Two types of one name in one namespace break the one-definition rule, and no linker says so."""
    if path.parts[0] == "src" and path.suffix in CPP:
        for name, line in type_names(text):
            for other in sorted(engine_types().get(name, set()) - {str(path)}):
                yield line, f"{other} defines a type {name} too"


def comments(path, text):
    """(line, text) of each comment: the lines of a block of `//` or `#` in one text, or what is behind code."""
    sign = "//" if path.suffix in CPP else "#"
    blocks = []
    for number, line in enumerate(text.split("\n"), 1):
        code, found, comment = line.partition(sign + " ")
        if not found or '"' in code:
            continue
        if not code.strip() and blocks and blocks[-1][2] == number - 1:
            blocks[-1][1] += " " + comment
            blocks[-1][2] = number
        else:
            blocks.append([number, comment, number if not code.strip() else 0])
    return [(number, comment) for number, comment, _ in blocks]


def prose_of_comments(path, text):
    """A comment has a subject, says "this rank", and names no callers, which it would not keep up with."""
    if not is_code(path) or not str(path).startswith(CLEAN_COMMENTS):
        return
    for number, comment in comments(path, text):
        if comment.startswith("Of "):
            yield number, "a comment that begins with 'Of ' has no subject"
        if person := re.search(r"\bI (?=[a-z])|\b(?:me|my|mine|we|our)\b", re.sub("`[^`]*`", "", comment)):
            yield number, f"'{person[0]}' in a comment: say which rank or process"
        if callers := re.search(r"\b(?:[Cc]alled|Used|[Mm]ade|Owned) by (?=[\w/]+\.(?:cc|h)\b)|\b(?:Called|Used) by\b", comment):
            yield number, f"'{callers[0]}': say what the file owns, not who includes it"


def allowed_includes(path, text):
    """Between the folders of src, arrows point one way."""
    if path.parts[0] != "src" or path.suffix not in CPP or path.parts[1] not in MAY_INCLUDE:
        return
    allowed = MAY_INCLUDE[path.parts[1]] | {path.parts[1], "ferry"}
    for match in re.finditer(r'^#include "(\w+)/(?!check\.h")', text, flags=re.M):
        if match[1] in MAY_INCLUDE and match[1] not in allowed:
            yield line_at(text, match.start()), f"{path.parts[1]} may not include from {match[1]}"
    if path.parts[1] != "exchange" or len(path.parts) < 4:
        return
    room = path.parts[2]
    allowed = MAY_INCLUDE_IN_EXCHANGE.get(room, set()) | {room}
    for match in re.finditer(r'^#include "exchange/([\w.]+)', text, flags=re.M):
        if match[1] not in allowed:
            yield line_at(text, match.start()), f"exchange/{room} may not include from exchange/{match[1]}"


def retired_words(path, text):
    """Names are taken apart: `num_tiers` and `BadWeather` count."""
    if not is_code(path) and path.suffix != ".md":
        return
    text = re.sub(PLAIN_ENGLISH, lambda m: " " * len(m[0]), text)
    for match in re.finditer(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text):
        word = match[0].lower()
        for one in word, word.removesuffix("s"), re.sub("ies$", "y", word):
            if one in RETIRED:
                yield line_at(text, match.start()), f"'{match[0]}' is retired: {RETIRED[one]}"
                break


def memory_orders(path, text):
    if path.suffix not in CPP:
        return
    code = blank_out(text)
    atomic_call = r"(?:\.|->)(load|store|fetch_\w+|compare_exchange_\w+|test_and_set)\("
    for match in re.finditer(atomic_call, code):
        if "memory_order" not in inside(code, match.end(), "(", ")"):
            yield line_at(code, match.start()), f"{match[1]}() without a memory order"


def environment_writes(path, text):
    if path.suffix in CPP and path.parts[0] not in {"tools", "tests"}:
        code = blank_out(text)
        for match in re.finditer(r"\b(?:setenv|putenv|unsetenv|clearenv)\(", code):
            yield line_at(code, match.start()), "the library never changes the environment"


def environment_reads(path, text):
    # HCCL's variables belong to libferry_cann, which stands on the public headers.
    readers = {"src/base/environment.cc", "src/aclnn/environment.cc"}
    if path.suffix in CPP and path.parts[0] != "tests" and str(path) not in readers:
        for match in re.finditer(r"\bgetenv\(", blank_out(text)):
            yield line_at(text, match.start()), f"only {' and '.join(sorted(readers))} read the environment"


def environment_table(path, text):
    """docs/environment.md and the table that the code has say the same of the same variables."""
    if str(path) != "docs/environment.md":
        return
    code = (ROOT / "src/base/environment.cc").read_text()
    entries = re.findall(r'^    \{((?:"[^"]*",?\s*)+)\}', code, flags=re.M)
    cells = [[re.sub(r'"\s*"', "", cell) for cell in re.split(r'(?<="),\s*(?=")', entry)] for entry in entries]
    expected = ["| `{}` | {} | {} |".format(*(cell.strip().strip('"') for cell in row)) for row in cells]
    rows = [line for line in text.split("\n") if line.startswith("| `FERRY_")]
    for row in sorted(set(expected) ^ set(rows)):
        yield 1, f"'{row}' is in one of docs/environment.md and src/base/environment.cc only"
    if not rows or rows != expected:
        yield 1, "the table is not that of src/base/environment.cc, in its order"


# ---- documents


def is_page(path):
    """A page that people read from its beginning; CHANGELOG below its top section is history."""
    return path.suffix == ".md" and (path.parts[0] == "docs" or str(path) in {"README.md", "CHANGELOG.md"})


def page_text(path, text):
    """The text that the rules of pages hold for: a changelog only up to its second version."""
    if str(path) == "CHANGELOG.md":
        found = [match.start() for match in re.finditer("^## ", text, flags=re.M)]
        return text[: found[1]] if len(found) > 1 else text
    return text


def prose_blocks(text):
    """(line, text) of each paragraph, list item and heading: no table, no code, no comment of HTML."""
    blank = lambda match: "\n" * match[0].count("\n")
    text = re.sub(r"^(```+|~~~+)[^\n]*\n.*?^\1`*$", blank, text, flags=re.S | re.M)
    text = re.sub(r"<!-- bench:begin -->.*?<!-- bench:end -->|<!--.*?-->", blank, text, flags=re.S)
    block, start, in_list = [], 0, False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        item = re.match(r"\s*(?:[-*]|\d+\.)\s", line)
        code = re.match(r"(?: {4}|\t)", line) and not block and not in_list
        ends = not line.strip() or line.startswith(("|", "#")) or item or code
        if ends and block:
            yield start, " ".join(block)
            block = []
        if line.startswith("#"):
            yield number, line.lstrip("# ")
        elif line.strip() and not line.startswith("|") and not code:
            start = start if block else number
            block.append(line.strip())
        in_list = bool(item) or in_list and (not line.strip() or line.startswith(" "))


def sentences(block):
    """The sentences of a block; code, formulas and links count as a word each."""
    block = re.sub(r"`[^`]*`", "code", re.sub(r"``+.*?``+", "code", block))
    block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
    block = re.sub(r"^(?:[-*]|\d+\.)\s+|\*\*|[*_](?=\w)|(?<=\w)[*_]", "", block)
    return re.split(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9a-z])(?<!e\.g\. )(?<!i\.e\. )", block)


def prose_of_pages(path, text):
    """Pages have short lines and short sentences, and nobody in them says I."""
    if not is_page(path):
        return
    text = page_text(path, text)
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        fenced ^= line.startswith(("```", "~~~"))
        if len(line) > MAX_COLUMNS[False] and not fenced and not line.startswith(("|", "    ", "![")):
            yield number, f"{len(line)} columns, at most {MAX_COLUMNS[False]}"
        words = "" if line.startswith("    ") else re.sub(r"`[^`]*`", "", line)
        if not fenced and (match := re.search(r"(?<![\d×*] )\bI\b(?![ /]?\d)(?!/O)|\b(?:[Mm]e|[Mm]y|[Mm]ine)\b", words)):
            yield number, f"'{match[0]}': say which rank or program"
    for number, block in prose_blocks(text):
        for sentence in sentences(block):
            if (count := len(re.findall(r"\S*\w\S*", sentence))) > MAX_WORDS:
                yield number, f"a sentence of {count} words, at most {MAX_WORDS}: {' '.join(sentence.split()[:8])} .."


def design_numbers(path, text):
    """The sections of a design that is no file of this repository say nothing to its readers."""
    for match in re.finditer(r"\bdesign(?:,? sections?)? \d", text):
        yield line_at(text, match.start()), f"'{match[0]}': name a page of docs/"


def links(path, text):
    if path.suffix == ".md":
        for match in re.finditer(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not (ROOT / path.parent / match[1]).exists():
                yield line_at(text, match.start()), f"no file '{match[1]}'"


def token_journey(path, text):
    """Every `file` exists and has the `function` behind it; the walks are short."""
    if path.name != "token_journey.md":
        return
    for match in re.finditer(r"`((?:include|src|docs|tools|tests)/[\w./-]+)`(?: `(\w+)`)?", text):
        file, function = match.groups()
        if not (ROOT / file).exists():
            yield line_at(text, match.start()), f"no file '{file}'"
        elif function and not re.search(rf"\b{function}\(", (ROOT / file).read_text()):
            yield line_at(text, match.start()), f"no function '{function}' in {file}"
    for section in re.finditer(r"^## (.*)\n((?:(?!## ).*\n?)*)", text, flags=re.M):
        files = re.findall(r"^\| \d+ \|.*\| `([^`]+)` `\w+` \|$", section[2], flags=re.M)
        most, number = 7 if "between" in section[1] else 5, line_at(text, section.start())
        if not 1 <= len(files) <= most:
            yield number, f"the walk enters {len(files)} files, need 1 to {most}"
        if len(set(files)) < len(files):
            yield number, "the walk enters a file twice"


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
    record = re.sub(r"//.*", "", (ROOT / "src/exchange/setup/record.h").read_text())
    members = set(re.findall(r"\b(\w+)(?: = [^;]+| \{\}|\[\d+\] = \{\})?;", record))
    for match in found:
        if match[1] not in members:
            yield line_at(text, start + match.start()), f"src/exchange/setup/record.h has no member '{match[1]}'"


def readme_examples(path, text):
    """Programs that pages show are those that the tests build and run."""
    examples = {"docs/c_abi.md": "examples/dispatch_combine.c", "docs/planning.md": "examples/plan.c"}
    if example := examples.get(str(path)):
        if (ROOT / example).read_text() not in re.findall(r"```c\n(.*?)```", text, flags=re.S):
            yield 1, f"no block that equals {example}"
    if str(path) == "README.md":
        example = "examples/python/quickstart.py"
        if (ROOT / example).read_text() not in re.findall(r"```python\n(.*?)```", text, flags=re.S):
            yield 1, f"no block that equals {example}"
        if text.count("\n") > 120:
            yield 121, "a README that is read has at most 120 lines"
    if str(path) == "docs/tutorial.md":
        blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
        for example in sorted((ROOT / "examples/tutorial").glob("*.py")):
            if example.read_text() not in blocks:
                yield 1, f"no block that equals {example.relative_to(ROOT)}"


def lowest_python(path, text):
    """pyproject.toml, the extension's build and the table of docs/install.md begin with the same Python."""
    if str(path) != "pyproject.toml":
        return
    asked = re.search(r'^requires-python = ">=([\d.]+)"$', text, flags=re.M)
    if not asked:
        yield 1, "no requires-python with a lowest version"
        return
    for file, pattern in (
        ("python/CMakeLists.txt", r"^find_package\(Python ([\d.]+) "),
        ("docs/install.md", r"^\| Python \|.*\| ([\d.]+) and later \|"),
    ):
        said = re.search(pattern, (ROOT / file).read_text(), flags=re.M)
        if not said or said[1] != asked[1]:
            yield line_at(text, asked.start()), f"Python {asked[1]}, but {said[1] if said else 'no version'} in {file}"


def targets(path, text):
    """CONTRIBUTING and README name only what make and CMake know."""
    if str(path) not in {"CONTRIBUTING.md", "README.md"}:
        return
    makefile = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    files = [file for file in repository_files() if file.name == "CMakeLists.txt"]
    listed = "\n".join((ROOT / file).read_text() for file in files)
    built = set(re.findall(r"\b(?:add_executable|add_library|ferry_program|ferry_test|ferry_run|nanobind_add_module)\(([\w.]+)", listed))
    presets = set(re.findall(r'"name": "(\w+)"', (ROOT / "CMakePresets.json").read_text())) - {"base", "sanitizer"}
    steps = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^    ([\w |-]+)\)", (ROOT / "scripts/test.sh").read_text(), flags=re.M))))
    for pattern, known, what in (
        (r"`make ([\w-]+)|^make ([\w-]+)", makefile, "the Makefile has no target"),
        (r"--target ([\w-]+)", built, "CMake has no target"),
        (r"ctest [^\n]*-R ([\w.]+)", built, "CMake has no test"),
        (r"--preset ([\w-]+)", presets, "there is no preset"),
        (r"test\.sh ((?:[a-z][\w-]* ?)+)", steps, "scripts/test.sh has no step"),
    ):
        for match in re.finditer(pattern, text, flags=re.M):
            for name in " ".join(group for group in match.groups() if group).split():
                if name not in known and not (pattern.startswith("ctest") and any(one.startswith(name) for one in known)):
                    yield line_at(text, match.start()), f"{what} '{name}'"


RULES = [names, length, lines, places, first_line, function_length, classes, memory_orders]
RULES += [types_defined_twice, prose_of_comments, allowed_includes, retired_words, environment_writes, environment_reads]
RULES += [environment_table, links, targets, lowest_python, token_journey, record_names, readme_examples]
RULES += [prose_of_pages, design_numbers, distribution_name, one_version, programs_of_venv]
QUOTES_THE_RULES = {"tests/tidy.py", "tests/tidy_test.py", "tests/tidy_packages.py"}


def complaints(path, text):
    """path is relative to the root of the repository."""
    if str(path) == "LICENSE" or str(path).startswith("tests/fuzz/seeds/"):  # the words of others
        return
    for rule in RULES:
        quoted = str(path) in QUOTES_THE_RULES and rule in {lines, places, retired_words, design_numbers, distribution_name, one_version}
        if not quoted:
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
