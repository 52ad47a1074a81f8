"""The command line, `ferry` or `python -m ferry`. It has all subcommands of the native program, which is installed with
the package, and the subcommands plot and compare. The arguments of a native subcommand are passed on unchanged."""

import argparse
import sys

from . import native_program
from .bench import compare, plot

NATIVE = {"bench": "measure dispatch and combine, and compare them with the same traffic, places known",
          "launch": "start ranks of a program, on this host or several",
          "doctor": "what this machine offers, and what to change for speed",
          "topology": "the tree of ranks, and what each algorithm puts on each link",
          "plan": "how long dispatch and combine take on a machine, and what limits them",
          "trace": "where two runs of a program differ first",
          "top": "what the ranks of running programs do, at a glance"}


def warn_of_other_distributions():
    """Warns of installed distributions that own the same files. Before version 0.2 this distribution was called ferry,
    the name of another project in the package index."""
    for found in native_program.other_distributions():
        print(f"ferry doctor: {found} owns the same files as ferry-ep, and removing it removes them. "
              "Run pip uninstall ferry, then install ferry-ep again", file=sys.stderr)


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["doctor"]:
        warn_of_other_distributions()
    if arguments and arguments[0] in (*NATIVE, "--version"):
        return native_program.replace_process(arguments)
    parser = argparse.ArgumentParser(prog="ferry", description="dispatch and combine of Mixture-of-Experts")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, purpose in NATIVE.items():
        commands.add_parser(name, help=purpose, add_help=False)
    for name, module, purpose in (("plot", plot, "draw results as svg or png"),
                                  ("compare", compare, "measure ferry beside torch.distributed's Gloo and MPI")):
        command = commands.add_parser(name, help=purpose, description=module.__doc__.partition("\n")[0])
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
