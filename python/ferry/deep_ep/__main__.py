"""`python -m ferry.deep_ep program.py arguments...`: runs a program in which `import deep_ep` finds ferry.deep_ep.

With torchrun: `torchrun ... -m ferry.deep_ep program.py arguments...`.
"""

import sys

from ferry.deep_ep import program

program.start(sys.argv[1:], globals())
