"""ferry.vllm where there is no vLLM: it registers only on request, and imports nothing. The rest: make check-vllm."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

PROGRAM = """
import sys
from ferry.vllm import find_platform
print(find_platform(), [name for name in ("torch", "vllm") if name in sys.modules])
"""


@pytest.mark.parametrize("asked, said", [("1", "ferry.vllm.platform.FerryCpuPlatform"), ("0", "None"), (None, "None")])
def test_it_answers_only_when_asked(monkeypatch, asked, said):
    monkeypatch.delenv("FERRY_VLLM", raising=False)
    if asked is not None:
        monkeypatch.setenv("FERRY_VLLM", asked)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"{said} []\n"


def test_vllm_finds_it():
    points = entry_points()  # a dict before Python 3.10
    group = "vllm.platform_plugins"
    found = points.select(group=group) if hasattr(points, "select") else points.get(group, [])
    assert "ferry.vllm:find_platform" in [point.value for point in found if point.name == "ferry"]
