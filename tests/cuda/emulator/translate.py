#!/usr/bin/env python3
"""translate.py <source> <name> <result>: a CUDA source as C++ that the host's compiler takes, with the names of
device.h. Lines keep their numbers, and messages the given name. Called by CMakeLists.txt of tests/cuda."""

import re
import sys

# What a statement of assembly does, and the function of device.h that does it, with the statement's operands.
ASSEMBLY = {
    r"ld\.acquire\.(gpu|sys)\.global\.u64 %0, \[%1\];": "load_acquire",
    r"st\.release\.(gpu|sys)\.global\.u64 \[%0\], %1;": "store_release",
    r"mov\.u64 %0, %%globaltimer;": "read_clock",
}
KERNEL = r"([A-Za-z_][\w:]*(?:<[^<>;(){}]*>)?)"
TEXT = r'"(?:\\.|[^"\\])*"'


def newlines(text):
    return "\n" * text.count("\n")


def operands(text):
    """The expressions of "constraint"(expression), with balanced parentheses."""
    for match in re.finditer(TEXT + r"\s*\(", text):
        depth, at = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield text[match.end() : at - 1]


def assembly(match):
    instruction = "".join(part[1:-1] for part in re.findall(TEXT, match[1]))
    for pattern, function in ASSEMBLY.items():
        if re.fullmatch(pattern, instruction):
            return f"::ferry::emulator::{function}({', '.join(operands(match[2]))});" + newlines(match[0])
    sys.exit(f"{sys.argv[2]}: nothing in device.h does '{instruction}'; add it to translate.py")


def translated(text):
    text = re.sub(r"\basm\s+volatile\s*\(((?:\s*" + TEXT + r")+)(.*?)\);", assembly, text, flags=re.S)
    text = re.sub(
        KERNEL + r"\s*<<<(.*?)>>>\s*\(",
        lambda m: f"::ferry::emulator::launch([](const auto&... of) {{ {m[1]}(of...); }}, {m[2]})(",
        text,
        flags=re.S,
    )
    text = re.sub(
        r"\bextern\s+__shared__\s+([\w:\s]+?)\s*(\w+)\s*\[\s*\]\s*;",
        lambda m: f"auto* {m[2]} = reinterpret_cast<{m[1]}*>(::ferry::emulator::shared_bytes());" + newlines(m[0]),
        text,
    )
    return re.sub(r"^[ \t]*#pragma unroll[^\n]*$", "", text, flags=re.M)


def main():
    source, name, result = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = translated(file.read())
    head = "#pragma once\n" if source.endswith(".cuh") else ""
    with open(result, "w", encoding="utf-8") as file:
        file.write(f'{head}#include "cuda/emulator/device.h"\n#line 1 "{name}"\n{text}')


if __name__ == "__main__":
    main()
