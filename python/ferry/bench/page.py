"""Writes a report as one HTML page that needs no network. The page is that of the native program; it draws its data in
the browser."""

import json
import os
import platform
import time
from pathlib import Path

PAGE = Path(__file__).with_name("page.html")


def write_page(file, title, lines, **parts):
    """Writes the page to a file. Raises OSError when the file cannot be written."""
    data = json.dumps({"title": title, "lines": lines, **parts}).replace("<", "\\u003c")
    before, after = PAGE.read_text().split(">null<")
    Path(file).write_text(f"{before}>{data}<{after}")


def when_and_where():
    with open("/proc/cpuinfo") as info:
        names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    return (f"{time.strftime('%Y-%m-%d %H:%M')}, {len(os.sched_getaffinity(0))} hardware threads of {processor}, "
            f"load {os.getloadavg()[0]:.1f}")
