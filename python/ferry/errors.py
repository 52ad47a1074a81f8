"""The exceptions of ferry, which the native module raises. There is one class for each code of ferry::Code."""

from typing import Optional


class Error(RuntimeError):
    """The base class. `code` is a stable lower-case name, `culprit` the rank that caused the error or None, and
    `group_usable` says whether the next call can succeed."""

    code: str = "error"
    culprit: Optional[int] = None
    group_usable: bool = True


class InvalidArgument(Error, ValueError):
    """This rank's call was refused; nothing was sent; the group is usable."""

    code = "invalid_argument"


class PeerRejected(Error):
    """Another rank's call was refused; nothing was sent; the group is usable."""

    code = "peer_rejected"


class Mismatch(Error):
    """Ranks called different operations, or with different settings; the group is usable."""

    code = "mismatch"


class Capacity(Error):
    """There were more rows than the caller's fixed capacity, or memory was refused; the group is usable."""

    code = "capacity"


class PeerLost(Error):
    """A rank was lost or has departed; the group is broken."""

    code = "peer_lost"


class Timeout(Error, TimeoutError):
    """A rank did not arrive before the deadline; the group is broken."""

    code = "timeout"


class Broken(Error):
    """The group broke earlier."""

    code = "broken"


class Closed(Error):
    """The group, exchange or rows were destroyed, closed, released, or belong to another process."""

    code = "closed"


class System(Error):
    """The operating system refused a call."""

    code = "system"


class Interrupted(Error):
    """Ctrl-C or Group.interrupt() ended a wait of the culprit; the group is broken."""

    code = "interrupted"


_CLASSES = {each.code: each for each in Error.__subclasses__()}


def as_refusal(error):
    """Returns `error` if it is a ferry.Error. An exception of torch or Python, which a wrong argument caused, is turned
    into an InvalidArgument with its type and text."""
    if isinstance(error, Error):
        return error
    refusal = InvalidArgument(f"{type(error).__name__}: {error}")
    refusal.__cause__ = error
    return refusal


def make_error(code, message, culprit=None, group_usable=True):
    """Makes the exception for a status of the native module. An unknown code gives an Error."""
    error = _CLASSES.get(code, Error)(message)
    error.culprit = culprit
    error.group_usable = group_usable
    return error
