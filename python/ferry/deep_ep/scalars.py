"""Checks of numbers and switches among the arguments of ferry.deep_ep. They raise ferry.InvalidArgument with the name,
the value and the limit.

As in DeepEP, a number is any integer, and a switch is True, False, 0, 1 or None.
"""

import numbers

import numpy as np

from ferry.errors import InvalidArgument

MOST = 2**31 - 1  # DeepEP's numbers have the type int of C
MOST_BYTES = 2**63 - 1
MOST_TOPK = 32  # kMaxTopK of src/base/limits.h, and so the most ranks that one row reaches
FEWEST_SMS = 4  # the fewest that DeepEP's model recommends
SIZE_UNIT = 2 << 20  # sizes of ElasticBuffer are multiples of this


def integer(name, value, least=0, most=MOST):
    """Returns `value`, an integer of Python or numpy from `least` to `most`, as an int."""
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidArgument(f"{name} is {_shown(value)}, need {least} to {most}")
    return int(value)


def flag(name, value):
    """Returns `value`, a switch, as a bool."""
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
    """Returns `value` as one line of at most 100 characters. Python refuses to print an int of 5,000 digits."""
    try:
        return " ".join(f"{value!r:.100}".split())
    except Exception:
        return f"of type {type(value).__name__}"
