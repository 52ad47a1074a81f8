"""Numbers and switches among the arguments of ferry.deep_ep: ferry.InvalidArgument has the name, the value and the
limit.

DeepEP's own calls take any integer for a number, and for a switch True, False, 0, 1 or None: so do these.
"""

import numbers

import numpy as np

from ferry.errors import InvalidArgument

MOST = 2**31 - 1  # of DeepEP's numbers, which are of C's type int
MOST_BYTES = 2**63 - 1
MOST_TOPK = 32  # of an exchange, so ranks that one row reaches: kMaxTopK of src/base/limits.h
FEWEST_SMS = 4  # that DeepEP's model recommends
SIZE_UNIT = 2 << 20  # of the sizes of ElasticBuffer


def integer(name, value, least=0, most=MOST):
    """`value`, an integer of Python or numpy, as an int."""
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidArgument(f"{name} is {_shown(value)}, need {least} to {most}")
    return int(value)


def flag(name, value):
    """`value`, a switch, as a bool."""
    if isinstance(value, (bool, np.bool_)) or value is None:
        return bool(value)
    if isinstance(value, numbers.Integral) and value in (0, 1):
        return bool(value)
    raise InvalidArgument(f"{name} is {_shown(value)}, need True or False")


def rounded_up(number, unit):
    return -(-number // unit) * unit


def check_flags(**given):
    for name, value in given.items():
        flag(name, value)


def _shown(value):
    """In at most 100 characters: tensors have lines, and an int of 5,000 digits has no text."""
    try:
        return " ".join(f"{value!r:.100}".split())
    except Exception:
        return f"of type {type(value).__name__}"
