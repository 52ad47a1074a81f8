#!/bin/bash
# wheel.sh [python...]: wheels of ferry in build/wheels, made by these Pythons (by default that of .venv), that any
# Linux of this architecture with glibc 2.34 or later takes: they have every library inside but UCX, which is loaded
# at run time where it is. From Python 3.12 on one wheel serves all. With them the sdist. Called by `make wheel`.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/build/wheels
[ $# -gt 0 ] || set -- .venv/bin/python

# make_wheel <python> <tag>: .venv's is built where `make test` has built the rest of it.
make_wheel() {
  local options=(--quiet --disable-pip-version-check --no-deps -w "$out/raw")
  if [ "$1" = .venv/bin/python ]; then
    cmake --preset release >/dev/null
    options+=(--no-build-isolation -C build-dir=build/release -C cmake.define.FERRY_BUILD_TESTS=ON)
  else
    # The options of release, so that ccache has most of it.
    options+=(-C build-dir="build/wheel-$2" -C cmake.define.FERRY_UNITY=ON -C cmake.define.FERRY_WERROR=ON)
  fi
  CXX=c++ "$1" -m pip wheel "${options[@]}" .
}

rm -rf "$out"
mkdir -p "$out/raw"
.venv/bin/python -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' \
  "$out" >/dev/null
for python in "$@"; do
  tag=$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{min(sys.version_info[1], 12)}")')
  if compgen -G "$out/ferry-*-$tag-*.whl" >/dev/null; then continue; fi
  echo "the wheel $tag"
  make_wheel "$python" "$tag"
  PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --plat "manylinux_2_34_$(uname -m)" -w "$out" \
    "$out"/raw/ferry-*-"$tag"-*.whl >"$out/repair.log" 2>&1 || { cat "$out/repair.log" >&2; exit 1; }
done
rm -r "$out/raw"
ls -sh "$out"
