"""The exchanges of each process group, which the layers of all its models share.

They live until their process group is destroyed, which all ranks do at the same point of the program. They do not end
with the last layer: ranks collect garbage at different times, so the next model would find exchanges on some ranks
only. Calls ferry."""

import weakref

import ferry
from ferry.exchanges import Exchanges

# Seconds: the default timeout of gloo. It is that long because ranks that save a checkpoint or compile come late to a
# call. A rank that died is noticed at once.
DEADLINE = 1800.0

_by_group = weakref.WeakKeyDictionary()  # Exchanges of a process group, which they must not keep alive


def of(process_group):
    """Returns the ferry.exchanges.Exchanges of this process group. The first call for a process group is collective."""
    found = _by_group.get(process_group)
    if found is None:
        group = ferry.init(process_group=process_group, deadline=DEADLINE)
        found = _by_group[process_group] = Exchanges(group)
    return found
