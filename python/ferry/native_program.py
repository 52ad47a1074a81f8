"""Finds the native program `ferry`, which is installed with the package as ferry/bin/ferry, and other distributions
that own the same files."""

import os
import sys
from pathlib import Path


def path():
    """Returns the path of the native program. Raises FileNotFoundError with the paths that were tried."""
    places = [Path(folder) / "bin" / "ferry" for folder in sys.modules[__package__].__path__]
    for place in places:
        if place.is_file():
            return str(place)
    raise FileNotFoundError(f"the native program is not installed at {' or '.join(map(str, places))}: "
                            "install the package with pip, which builds it")


def replace_process(arguments):
    """Replaces this process by the native program. If there is none, returns a message for sys.exit()."""
    try:
        program = path()
    except FileNotFoundError as error:
        return f"ferry {arguments[0]}: {error}"
    os.execv(program, ["ferry", *arguments])


def other_distributions():
    """Returns the names of the metadata folders of distributions called `ferry` that are installed beside this package,
    such as "ferry-0.1.0.dist-info"."""
    folders = [Path(folder).parent for folder in sys.modules[__package__].__path__]
    return sorted(found.name for folder in folders for found in folder.glob("ferry-[0-9]*-info"))
