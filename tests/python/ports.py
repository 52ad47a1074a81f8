"""A port for programs that need its number as an argument. It is free now, and one of many, so that no two tests share
it. It is below the ports that the kernel gives to callers that request any: the program may bind it half a minute
later."""

import contextlib
import random
import socket
from pathlib import Path

FIRST = 10000


def free_port():
    given_to_any = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(FIRST, given_to_any)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return str(port)
