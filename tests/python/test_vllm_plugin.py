"""ferry.vllm where there is no vLLM: it registers only on request, and imports nothing. The rest: make check-vllm."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

PROGRAM = """
import sys
from ferry.vllm import find_platform, use_views
if find_platform() is None:
    use_views()
print(find_platform(), [name for name in ("torch", "vllm") if name in sys.modules])
"""


def output_of(program, monkeypatch, variable, value):
    """What a new process prints in which the variable has this value; None: it is not set."""
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.parametrize("asked, said", [("1", "ferry.vllm.platform.FerryCpuPlatform"), ("0", "None"), (None, "None")])
def test_it_answers_only_when_asked(monkeypatch, asked, said):
    assert output_of(PROGRAM, monkeypatch, "FERRY_VLLM", asked) == f"{said} []\n"


@pytest.mark.parametrize("group, function", [("vllm.platform_plugins", "find_platform"),
                                             ("vllm.general_plugins", "use_views")])  # fmt: skip
def test_vllm_finds_it(group, function):
    points = entry_points()  # a dict before Python 3.10
    found = points.select(group=group) if hasattr(points, "select") else points.get(group, [])
    assert f"ferry.vllm:{function}" in [point.value for point in found if point.name == "ferry"]


STAND_IN = """
import sys, types
module = types.ModuleType("vllm.platforms.cpu")
class CpuPlatform:
    @classmethod
    def check_and_update_config(cls, vllm_config):
        if vllm_config.parallel_config.distributed_executor_backend == "uni":
            vllm_config.parallel_config.distributed_executor_backend = "mp"
module.CpuPlatform = CpuPlatform
sys.modules.update({"vllm": types.ModuleType("vllm"), "vllm.platforms": types.ModuleType("vllm.platforms"),
                    "vllm.platforms.cpu": module})
from ferry.vllm.platform import FerryCpuPlatform
for backend, workers in (("mp", 1), ("uni", 1), ("mp", 2), ("ray", 1)):
    parallel = types.SimpleNamespace(distributed_executor_backend=backend, world_size=workers, nnodes=1,
                                     tensor_parallel_size=workers, enable_fault_tolerance=False)
    FerryCpuPlatform.check_and_update_config(
        types.SimpleNamespace(parallel_config=parallel, kv_transfer_config=None, ec_transfer_config=None))
    print(parallel.distributed_executor_backend)
"""


@pytest.mark.parametrize("bound, said", [("nobind", "uni uni ferry.vllm.executor.EngineExecutor ray"),
                                         ("0|1", "mp mp mp ray"), (None, "mp mp mp ray")],
                         ids=["nobind", "0|1", "unset"])  # fmt: skip
def test_an_engine_runs_its_first_worker_itself_unless_threads_are_bound(monkeypatch, bound, said):
    assert output_of(STAND_IN, monkeypatch, "VLLM_CPU_OMP_THREADS_BIND", bound).split() == said.split()
