"""The modules of python/ferry import each other without a circle, inside functions too, and define the names that their
functions read."""

import ast
import builtins
import symtable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "ferry"


def import_graph(package):
    """{module: modules of the package that it imports}, wherever in its file an import is."""
    files = {name_of(file, package): file for file in package.rglob("*.py")}
    graph = {}
    for module, file in files.items():
        inside = module if file.name == "__init__.py" else module.rpartition(".")[0]
        graph[module] = {target for name in imported_names(file, inside) for target in loaded_by(name, files, module)}
    return graph


def name_of(file, package):
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(file, inside):
    """Dotted names, `a.b.c` of `from a.b import c` as well; relative imports start from the package `inside`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = inside.split(".")[: len(inside.split(".")) + 1 - node.level] if node.level else []
            yield from (".".join([*parts, *filter(None, [node.module]), each.name]) for each in node.names)


def loaded_by(name, files, module):
    """The modules that an import of `name` in `module` loads. They are the module of that name, or the one that defines
    the name, and the packages around it. Packages around `module` are left out, since they are loaded already."""
    if name == "ferry._core":  # the native module, which has no file here
        return
    while name and name not in files:
        name = name.rpartition(".")[0]
    first = True
    while name:
        if name != module and (first or not f"{module}.".startswith(f"{name}.")):
            yield name
        name, first = name.rpartition(".")[0], False


def test_no_module_imports_itself_by_way_of_others():
    try:
        TopologicalSorter(import_graph(PACKAGE)).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("second", ["import ferry.one", "def f():\n    from ferry import one", "from .one import x"])
def test_a_circle_is_found_at_module_level_and_in_functions(tmp_path, second):
    package = tmp_path / "ferry"
    package.mkdir()
    for name, text in {"__init__": "", "one": "from ferry.two import y\nx = 1", "two": second}.items():
        (package / f"{name}.py").write_text(text)
    with pytest.raises(CycleError):
        TopologicalSorter(import_graph(package)).prepare()


def undefined_names(file):
    """Names that functions and classes of a file read as globals and that it does not define."""
    def scopes(table):
        for child in table.get_children():
            yield child
            yield from scopes(child)

    top = symtable.symtable(file.read_text(), str(file), "exec")
    known = {*vars(builtins), *top.get_identifiers(), "__file__", "__name__", "__package__"}
    return {symbol.get_name() for scope in scopes(top) for symbol in scope.get_symbols()
            if symbol.is_global() and symbol.is_referenced()} - known


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_functions_read_names_that_exist(file):
    assert not undefined_names(file)
