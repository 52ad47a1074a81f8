"""A port for programs that must be told one: free now, chosen by the kernel, so that no two tests share it."""

import socket


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])
