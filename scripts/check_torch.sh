#!/bin/bash
# check_torch.sh [pytest arguments]: runs the tests of the backend of torch.distributed with a newer torch than that of
# .venv, in a virtual environment outside the repository, which it makes: FERRY_TORCH_VENV, by default a folder of the
# temporary one. Called by scripts/test.sh, step torch, for which .venv has the tools that build a wheel.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${FERRY_TORCH_VENV:-${TMPDIR:-/tmp}/ferry-torch-venv}
wanted=scripts/requirements-torch.txt
if ! cmp -s "$wanted" "$venv/requirements-torch.txt"; then
  echo "making $venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$venv/"
fi
rm -rf build/wheel-torch
CXX=c++ .venv/bin/python -m pip wheel --quiet --no-build-isolation --no-deps -w build/wheel-torch .
"$venv/bin/python" -m pip install --quiet --force-reinstall --no-deps build/wheel-torch/ferry_ep-*.whl
"$venv/bin/python" -m pytest -q -rfEs tests/python/test_torch_backend*.py "$@"
[ $# -gt 0 ] || scripts/versions.py record --python "$venv/bin/python" "tests/python/test_torch_backend*.py" 1 0 torch
