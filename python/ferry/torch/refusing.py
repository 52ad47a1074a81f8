"""Refusing sends a refusal to the other ranks when a front cannot make a collective call."""

from ferry.errors import Error
from ferry.torch.turns import take


class Refusing:
    """A context manager. An exception in its block, also SystemExit and KeyboardInterrupt, is sent to the other ranks
    as a refusal, so that their call is refused as well. `refuse` is Exchange.refuse_dispatch, Exchange.refuse_combine
    or Group.refuse_exchange, or None to send no refusal; `arguments` are its arguments after the text."""

    __slots__ = ("_refuse", "_arguments")

    def __init__(self, refuse, *arguments):
        self._refuse, self._arguments = refuse, arguments

    def __enter__(self):
        pass

    def __exit__(self, kind, error, _):
        if self._refuse is None or error is None:
            return
        said = str(error) if isinstance(error, Error) else f"{kind.__name__}: {error}"
        try:
            take(self._refuse, said, *self._arguments)
        except Error:  # the error that broke the group
            if isinstance(error, Exception):  # else the program ends anyway
                raise
