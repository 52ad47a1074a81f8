"""The error of calls that cannot work on a CPU."""

from ferry.errors import Error


class NotMapped(Error, NotImplementedError):
    """A call that needs a device, in a program whose device is the CPU."""

    code = "not_mapped"


def refusal(name, reason):
    """Makes a function with the name `name` that raises NotMapped with the reason."""

    def refuse(*_, **__):
        raise NotMapped(f"{name} does not work here: {reason}")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse
