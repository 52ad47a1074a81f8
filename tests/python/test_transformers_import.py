"""import ferry.transformers where there is no transformers, or one that is too old."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("version, said", [("5.22.2", "transformers 5.22.2 is installed"), (None, "none is installed")])
def test_the_version_that_is_missing_is_named(tmp_path, version, said):
    """5.22 has the package of the registry without the registry."""
    package = tmp_path / "transformers"
    (package / "distributed").mkdir(parents=True)
    for file in ("__init__.py", "distributed/__init__.py", "distributed/expert_parallel.py"):
        (package / file).touch()
    hide = "import importlib.metadata as m\ndef none(name): raise m.PackageNotFoundError(name)\nm.version = none\n"
    if version:
        metadata = tmp_path / f"transformers-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: transformers\nVersion: {version}\n")
        hide = ""
    program = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{hide}import ferry.transformers\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert f"ImportError: ferry.transformers needs transformers 5.23 or later, {said}: " in done.stderr
