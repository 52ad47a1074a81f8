"""The main module of processes that a program run by `python -m ferry.deep_ep` has spawned (program.py)."""

from ferry.deep_ep import program

program.run(globals())
