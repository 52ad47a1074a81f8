#!/bin/bash
# check_megatron.sh [pytest arguments]: runs tests/megatron with the released Megatron-Core, which it puts into .venv
# (2.6 MB), and a wheel of this working tree. Not part of make test. Called by make check-megatron, which has
# installed .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=scripts/requirements-megatron.txt
if ! cmp -s "$wanted" .venv/requirements-megatron.txt; then
  .venv/bin/pip install --quiet --disable-pip-version-check -r "$wanted"
  cp "$wanted" .venv/
fi
rm -rf build/wheel-megatron
CXX=c++ .venv/bin/pip wheel --quiet --no-build-isolation --no-deps -w build/wheel-megatron .
.venv/bin/pip install --quiet --force-reinstall --no-deps build/wheel-megatron/ferry_ep-*.whl
.venv/bin/python -m pytest -q -rfEs tests/megatron "$@"
[ $# -gt 0 ] || .venv/bin/python scripts/versions.py record "tests/megatron" 1 0 megatron-core torch
