"""The rules of tidy.py about packages. `ferry` on the Python package index belongs to another project, so that the
distribution is ferry-ep; the module and the command are ferry."""

import re

# The name alone, with extras or a version behind it: no path, and neither ferry-ep nor ferry_ep.
OTHER = r"(?<![\w./~$-])ferry(?:\[[^\]\n]*\])?(?![\w/-]|\.\w|\[)"
PIP = r"""\bpip[\d.]*["'}]*,?\s+["']?(?:install|download|wheel|show)\b["']?([^\n`|;&)]*)"""
QUERY = r"""\b(?:version|distribution|requires|metadata|files)\(["']ferry["']\)"""
EXTRA = r"(?<![\w./-])ferry\[(?:ucx|torch|numpy|plot|transformers|vllm|jax|compare)\b[^\]\n]*\]"


def distribution_name(path, text):
    """No command, message or list of requirements names the project `ferry` of the index."""
    text = text.replace("\\\n", "\\\0")  # a command of several lines
    line_at = lambda position: len(re.findall(r"[\n\0]", text[:position])) + 1
    found = [(command.start(), re.search(OTHER, re.split(r"\s#", command[1])[0])) for command in re.finditer(PIP, text)]
    found += [(match.start(), match) for match in re.finditer(f"{EXTRA}|{QUERY}", text)]
    if path.name.startswith("requirements") and path.suffix == ".txt":
        found += [(match.start(), match) for match in re.finditer(r"^ferry(?![\w-]).*$", text, flags=re.M)]
    for line, name in sorted({(line_at(position), match[0]) for position, match in found if match}):
        yield line, f"'{name}' is another project on the package index: ferry-ep, or a path such as ./ferry"
    if str(path) == "pyproject.toml" and '\nname = "ferry-ep"\n' not in text:
        yield 1, 'the distribution is not called ferry-ep: name = "ferry-ep"'
