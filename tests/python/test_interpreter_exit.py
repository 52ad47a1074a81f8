"""The end of the interpreter while threads of the program or of ferry are in ferry or in torch."""

import subprocess
import sys

DAEMON = """
import threading, time
from ferry import _core

def call(group):
    while True:
        group.barrier()

for _ in range(4):
    threading.Thread(target=call, args=_core.threads(1, "", 20.0, ""), daemon=True).start()
time.sleep(0.05)
"""


def test_a_daemon_thread_in_a_call_does_not_abort_the_process():
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", DAEMON], stderr=subprocess.PIPE, text=True, timeout=60)
        assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr}"
