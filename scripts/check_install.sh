#!/bin/bash
# check_install.sh [release...]: what a new user does, where nothing is that built ferry: the portable wheel with
# .venv's Python and those of FERRY_PYTHONS, then in bare Debian systems of these releases (bookworm), and the Debian
# packages in the first of them. trixie has Python 3.13: its wheel is one of a Python from 3.12 on. Needs root. Called
# by scripts/test.sh, step bare.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- bookworm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Those of FERRY_PYTHONS too. A wheel for each version costs a build; from 3.12 on one serves all.
read -ra pythons <<<".venv/bin/python ${FERRY_PYTHONS:-}"
wheels=build/wheels

# first_steps <python>: README's: install the wheel, run the ten lines; numpy is the second install.
first_steps() {
  local home=$work/venv
  rm -rf "$home"
  "$1" -m venv "$home"
  "$home/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$wheels" ferry
  "$home/bin/python" tests/install/first_program.py
  "$home/bin/pip" install --quiet --disable-pip-version-check numpy
  "$home/bin/python" examples/python/quickstart.py | tail -1
}

# inside <root> <command...>: what is mounted is gone with the command.
inside() {
  unshare --mount bash -c '
    for each in proc sys dev; do mount --rbind "/$each" "$0/$each"; done
    exec chroot "$0" "$@"' "$@"
}

# bare_system <release>: a fresh copy of it in $work/<release>.
bare_system() {
  local kept=build/bare/$1
  if [ ! -e "$kept.complete" ]; then
    rm -rf "$kept"
    mkdir -p build/bare
    debootstrap --variant=minbase --include=python3-venv,ca-certificates "$1" "$kept" >"$kept.log" || {
      tail -20 "$kept.log" >&2
      return 1
    }
    touch "$kept.complete"
  fi
  cp -a "$kept" "$work/$1"
  cp /etc/resolv.conf "$work/$1/etc/"
}

# The wheel's first steps in a bare system; numpy's wheel comes from here.
wheel_in() {
  local root=$work/$1 version
  version=$(inside "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  mkdir "$root/ferry"
  cp "$wheels"/*.whl tests/install/first_program.py examples/python/quickstart.py "$root/ferry"
  .venv/bin/pip download --quiet --disable-pip-version-check --only-binary=:all: --python-version "$version" \
    --dest "$root/ferry" numpy
  inside "$root" python3 -m venv /ferry/venv
  inside "$root" /ferry/venv/bin/pip install --quiet --no-index --find-links /ferry ferry numpy
  inside "$root" /ferry/venv/bin/python /ferry/first_program.py
  inside "$root" /ferry/venv/bin/python /ferry/quickstart.py | tail -1
}

# Conan's recipe; it builds the consumer of tests/install against its package.
conan_package() {
  local conan=$work/conan/bin/conan
  export CONAN_HOME=$work/conan_home
  .venv/bin/python -m venv "$work/conan"
  "$work/conan/bin/pip" install --quiet --disable-pip-version-check conan
  "$conan" profile detect >/dev/null 2>&1
  "$conan" create . -s compiler.cppstd=20 -c tools.cmake.cmake_layout:test_folder='$TMP' >"$work/conan.log" 2>&1 || {
    tail -30 "$work/conan.log" >&2
    return 1
  }
}

# The packages in a bare system: the command line, then a C++ and a C program by pkg-config.
packages_in() {
  local root=$work/$1
  cp build/deb/*.deb examples/dispatch_combine.c* "$root/root"
  inside "$root" sh -ec 'cd /root
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends ./*.deb g++ pkg-config >/dev/null
    ferry bench --ranks 2 --tokens 2 --hidden 64 --check >/dev/null
    g++ -std=c++20 dispatch_combine.cc $(pkg-config --cflags --libs ferry) -o cc && ./cc
    gcc -std=c11 dispatch_combine.c $(pkg-config --cflags --libs ferry) -o c && ./c'
}

scripts/wheel.sh "${pythons[@]}"
for python in "${pythons[@]}"; do
  echo "== $("$python" --version)"
  first_steps "$python"
done
echo "== the sdist"
"$work/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps -w "$work" -C cmake.define.FERRY_UNITY=ON \
  "$wheels"/ferry-*.tar.gz
echo "== Conan's package"
conan_package
for release in "$@"; do
  echo "== $release"
  bare_system "$release"
  wheel_in "$release"
done
echo "== the Debian packages in $1"
scripts/deb.sh
packages_in "$1"
