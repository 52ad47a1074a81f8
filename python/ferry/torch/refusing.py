"""Refusing: a front that cannot make a collective call says so to the other ranks. Used by ferry.moe and the fronts."""

from ferry.errors import Error
from ferry.torch.turns import take


class Refusing:
    """What is raised inside, SystemExit and KeyboardInterrupt too, is told to the other ranks, whose call is refused as
    well, by Exchange.refuse_dispatch, Exchange.refuse_combine or Group.refuse_exchange, with more `arguments` of it; by
    None: nobody is told."""

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
        except Error:  # what broke the group
            if isinstance(error, Exception):  # else the program ends all the same
                raise
