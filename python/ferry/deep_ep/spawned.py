"""What processes import that were spawned by a program run with `python -m ferry.deep_ep` (program.py)."""

from ferry.deep_ep import program

program.run(globals())
