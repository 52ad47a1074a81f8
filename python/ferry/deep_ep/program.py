"""Runs another program in place of this one, with deep_ep installed, in its own process and in those that it starts.

multiprocessing (torch.multiprocessing.spawn, ferry.spawn) imports the main module again in a process that it spawns.
So the program runs as if it were the module `spawned`, which is imported there, installs deep_ep and runs it again.
"""

import importlib.util
import os
import sys

from ferry.deep_ep.install import install


class Argv(list):
    """sys.argv with the path of the program; multiprocessing hands it on to processes."""

    program = ""


def start(arguments, namespace):
    """Runs the program arguments[0] with the others, in `namespace`, that of the main module."""
    if not arguments or arguments[0].startswith("-"):
        sys.exit("usage: python -m ferry.deep_ep program.py [arguments...]")
    sys.argv = Argv(arguments)
    sys.argv.program = os.path.abspath(arguments[0])
    sys.path[0] = os.path.dirname(sys.argv.program)
    for name in [name for name in namespace if not name.startswith("__")]:
        del namespace[name]
    namespace["__package__"] = None
    namespace["__spec__"] = importlib.util.find_spec("ferry.deep_ep.spawned")
    run(namespace)


def run(namespace):
    """Runs the program of sys.argv in `namespace`."""
    install()
    sys.argv[0] = namespace["__file__"] = sys.argv.program
    with open(sys.argv.program, "rb") as source:
        code = compile(source.read(), sys.argv.program, "exec")
    exec(code, namespace)
