#!/usr/bin/env python3
"""draw_prose.py [seed]: ten comments of each of src, python and tools, and ten sentences of docs, for a reader who does
not know the code. Without a seed, the hash of the last commit is the seed, so that each commit draws others."""

import ast
import random
import subprocess
import sys

from tidy import ROOT, comments, prose_blocks, repository_files, sentences

DRAWN = 10


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            yield node.body[0].lineno, ast.get_docstring(node)


def prose_of(path):
    """The (line, text) of each comment, docstring or sentence of a page."""
    text = (ROOT / path).read_text()
    if path.suffix == ".md":
        for line, block in prose_blocks(text):
            yield from ((line, sentence) for sentence in sentences(block))
        return
    for line, comment in comments(path, text):
        if len(comment.split()) > 2:  # not the end of a namespace
            yield line, comment
    if path.suffix == ".py":
        yield from docstrings(text)


def main():
    last = ["git", "rev-parse", "--short=8", "HEAD"]
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else int(subprocess.check_output(last, cwd=ROOT), 16)
    print(f"tests/draw_prose.py {seed}")
    files = [path for path in repository_files() if path.suffix in (".h", ".cc", ".py", ".md")]
    for area in ("src", "python", "tools", "docs"):
        found = [(path, *said) for path in files if path.parts[0] == area for said in prose_of(path)]
        for path, line, text in random.Random(seed).sample(found, DRAWN):
            print(f"{path}:{line}: {' '.join(text.split())}")


if __name__ == "__main__":
    main()
