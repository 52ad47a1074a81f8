"""Finds the native program `ferry` that is installed with the package, as ferry/bin/ferry; and other distributions
that own the same files."""

import os
import sys
from pathlib import Path


def path():
    """Raises FileNotFoundError that names the paths that were tried."""
    places = [Path(folder) / "bin" / "ferry" for folder in sys.modules[__package__].__path__]
    for place in places:
        if place.is_file():
            return str(place)
    raise FileNotFoundError(f"the native program is not installed at {' or '.join(map(str, places))}: "
                            "install the package with pip, which builds it")


def replace_process(arguments):
    """Replaces this process by the native program. Returns, with a message for sys.exit(), only if there is none."""
    try:
        program = path()
    except FileNotFoundError as error:
        return f"ferry {arguments[0]}: {error}"
    os.execv(program, ["ferry", *arguments])


def other_distributions():
    """Metadata of distributions called `ferry` beside this package, such as "ferry-0.1.0.dist-info"."""
    folders = [Path(folder).parent for folder in sys.modules[__package__].__path__]
    return sorted(found.name for folder in folders for found in folder.glob("ferry-[0-9]*-info"))
