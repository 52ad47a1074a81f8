"""Installs deep_ep and runs another program in this process. deep_ep is installed in the processes that the program
spawns too.

multiprocessing (torch.multiprocessing.spawn, ferry.spawn) imports the main module again in each process that it spawns.
So the program runs under the module name `spawned`. A spawned process imports that module, which installs deep_ep and
runs the program again.
"""

import importlib.util
import os
import sys

from ferry.deep_ep.install import install

USAGE = """\
usage: python -m ferry.deep_ep [--map-cuda] program.py [arguments...]
       torchrun ... -m ferry.deep_ep [--map-cuda] program.py [arguments...]

Runs a program that says `import deep_ep`, unchanged, with ferry in its place.

  --map-cuda  the program's CUDA device is the CPU, NCCL is gloo, streams and events are idle, timers are of the
              wall clock (docs/deep_ep.md, "Unchanged")
  --help      prints this
"""


class Argv(list):
    """sys.argv with the path of the program. multiprocessing passes it to the processes that it spawns."""

    program = ""
    map_cuda = False


def start(arguments, namespace):
    """Runs the program of the command line `arguments` with the arguments after it. `namespace` is the dictionary of
    the main module, in which the program runs."""
    map_cuda = False
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option in ("-h", "--help"):
            print(USAGE, end="")
            sys.exit(0)
        if option != "--map-cuda":
            sys.exit(f"{USAGE}\nunknown option {option}")
        map_cuda = True
    if not arguments:
        sys.exit(f"{USAGE}\nno program is named")
    if not os.path.isfile(arguments[0]):
        sys.exit(f"{USAGE}\nthere is no program {arguments[0]}")
    sys.argv = Argv(arguments)
    sys.argv.program, sys.argv.map_cuda = os.path.abspath(arguments[0]), map_cuda
    sys.path[0] = os.path.dirname(sys.argv.program)
    for name in [name for name in namespace if not name.startswith("__")]:
        del namespace[name]
    namespace["__package__"] = None
    namespace["__spec__"] = importlib.util.find_spec("ferry.deep_ep.spawned")
    run(namespace)


def run(namespace):
    """Runs the program of sys.argv in `namespace`."""
    install()
    if sys.argv.map_cuda:
        from ferry import on_cpu

        on_cpu.map_device("cuda")
    sys.argv[0] = namespace["__file__"] = sys.argv.program
    with open(sys.argv.program, "rb") as source:
        code = compile(source.read(), sys.argv.program, "exec")
    exec(code, namespace)
