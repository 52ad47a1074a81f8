#!/bin/bash
# check_install.sh <what> [release...]: tries what new users do, on systems without anything of ferry. <what> is one of
#   wheels    installs a wheel in a new environment of .venv's Python and of those of FERRY_PYTHONS ("aarch64": under
#             emulation), and builds the sdist
#   files     does what wheels does, then installs a wheel in bare Debian systems of these releases (default bookworm),
#             and in the first of them the Debian packages, for C++ and for comparing topologies
#   source    builds C++ and Python from source in a bare system, and by Conan on this one
# The last lines say how long each took from nothing to a correct result; the aim, on an idle machine of two cores, is a
# minute for a wheel and five for anything else. The wheels and packages are those in FERRY_FILES, or are made in
# build/wheels and build/deb. Each version of Python below 3.12 needs a wheel and so a build of its own; from 3.12 on,
# as in trixie and forky, one wheel serves all. Bare systems need root. Called by scripts/test.sh, steps bare and
# source, and by scripts/release.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export CI=${CI:-true} # scikit-build-core gives cmake 5 s to say its version, and 20 s there; a busy machine needs them
what=${1:-}
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- bookworm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra pythons <<<"${FERRY_PYTHONS:-}"
[[ " ${pythons[*]} " == *" .venv/bin/python "* ]] || pythons=(.venv/bin/python "${pythons[@]}")
wheels=${FERRY_FILES:-build/wheels}
debs=${FERRY_FILES:-build/deb}
times=()

# user <seconds aimed at> <name> <command...>: runs one thing that new users do, and notes its time.
user() {
  local aim=$1 name=$2 begin=$SECONDS
  shift 2
  echo "== $name"
  "$@"
  times+=("$(printf '%4d s (aim %3d s): %s' $((SECONDS - begin)) "$aim" "$name")")
}

# first_steps <python>: those of README: installs the wheel and runs the first program, which needs nothing else; then
# installs numpy for the quickstart.
first_steps() {
  local home=$work/venv
  rm -rf "$home"
  "$1" -m venv "$home"
  "$home/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$wheels" ferry-ep
  "$home/bin/python" tests/install/first_program.py
  "$home/bin/pip" install --quiet --disable-pip-version-check numpy
  "$home/bin/python" examples/python/quickstart.py | tail -1
  .venv/bin/python scripts/versions.py record --python "$home/bin/python" "first steps with the wheel" 1 0 numpy
}

# emulated_steps: the same with the wheel for aarch64 and the Python of scripts/sysroot.sh. Nothing there can start a
# program, so the command line is started from here.
emulated_steps() {
  local python=$PWD/build/aarch64-sysroot/python site=$work/aarch64 platform=manylinux_2_34_aarch64
  local fetch=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --python-version 3.11
    --only-binary=:all:)
  "${fetch[@]}" --no-index --find-links "$wheels" --platform $platform --target "$site" ferry-ep
  PYTHONPATH=$site "$python" tests/install/first_program.py without-command
  "${fetch[@]}" --platform $platform --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 \
    --target "$work/numpy" numpy
  PYTHONPATH=$site:$work/numpy "$python" examples/python/quickstart.py | tail -1
  qemu-aarch64 -L /usr/aarch64-linux-gnu "$site/ferry/bin/ferry" bench --mode threads --ranks 2 --tokens 2 \
    --hidden 64 --check >/dev/null
  PYTHONPATH=$site:$work/numpy scripts/versions.py record --python "$python" \
    "first steps with the wheel, aarch64 emulated" 1 0 numpy
}

# inside <root> <command...>: runs a command in the system at <root>. What is mounted there is gone with the command.
inside() {
  unshare --mount bash -c '
    for each in proc sys dev; do mount --rbind "/$each" "$0/$each"; done
    exec chroot "$0" "$@"' "$@"
}

# bare_system <release> <name>: makes a fresh copy of a minimal Debian system in $work/<name>.
bare_system() {
  local kept=build/bare/$1 script=/usr/share/debootstrap/scripts/$1
  [ -e "$script" ] || script=${script%/*}/sid # a release that is younger than debootstrap
  if [ ! -e "$kept.complete" ]; then
    rm -rf "$kept"
    mkdir -p build/bare
    debootstrap --variant=minbase --include=python3-venv,ca-certificates "$1" "$kept" "" "$script" >"$kept.log" || {
      tail -20 "$kept.log" >&2
      return 1
    }
    touch "$kept.complete"
  fi
  cp -a "$kept" "$work/$2"
  cp /etc/resolv.conf "$work/$2/etc/"
}

# The wheel's first steps in a bare system; numpy's wheel comes from here.
wheel_in() {
  local root=$work/$1 version
  version=$(inside "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  mkdir "$root/ferry"
  cp "$wheels"/*.whl tests/install/first_program.py examples/python/quickstart.py "$root/ferry"
  .venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary=:all: --python-version "$version" \
    --dest "$root/ferry" numpy
  inside "$root" python3 -m venv /ferry/venv
  inside "$root" /ferry/venv/bin/pip install --quiet --no-index --find-links /ferry ferry-ep numpy
  inside "$root" /ferry/venv/bin/python /ferry/first_program.py
  inside "$root" /ferry/venv/bin/python /ferry/quickstart.py | tail -1
  scripts/versions.py record --python "chroot $root /ferry/venv/bin/python" \
    "first steps with the wheel, bare $1" 1 0 numpy
}

# in_home <root> <commands>: in an empty home, as root.
in_home() {
  inside "$1" env DEBIAN_FRONTEND=noninteractive HOME=/ferry bash -eo pipefail -c "cd; apt-get update -qq; $2"
}

# From source as README says it: build, install, then programs by find_package and by pkg-config.
source_in() {
  mkdir -p "$work/$1/ferry/source"
  git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$work/$1/ferry/source"
  in_home "$work/$1" 'apt-get install -y -qq --no-install-recommends make >/dev/null
    cd source
    make run >../run.log || { cat ../run.log; exit 1; }
    tail -1 ../run.log
    cmake --install build/release --prefix ~/ferry >/dev/null
    cmake -S tests/install/consumer -B ~/consumer -DCMAKE_PREFIX_PATH=$HOME/ferry >/dev/null
    cmake --build ~/consumer >/dev/null
    ~/consumer/consumer && ~/consumer/consumer_cann && ~/consumer/consumer_plan
    lib=$(dirname "$(find ~/ferry -name libferry.so)")
    export PKG_CONFIG_PATH=$lib/pkgconfig
    g++ -std=c++20 examples/dispatch_combine.cc $(pkg-config --cflags --libs ferry) "-Wl,-rpath,$lib" -o ~/cc
    ~/cc'
}

# Python from source as README says it, after source_in; what the build requires comes from here.
python_source_in() {
  .venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
    --dest "$work/$1/ferry/wheels" scikit-build-core nanobind numpy
  in_home "$work/$1" 'apt-get install -y -qq --no-install-recommends python3-venv python3-dev >/dev/null
    python3 -m venv venv
    . venv/bin/activate
    export PIP_NO_INDEX=1 PIP_FIND_LINKS=~/wheels
    cd source
    pip install --quiet .
    python tests/install/first_program.py
    pip install --quiet numpy
    python examples/python/quickstart.py | tail -1'
}

# The packages in a bare system: the command line, then programs by pkg-config: C++, C, CANN and the planner.
packages_in() {
  mkdir "$work/$1/ferry"
  cp "$debs"/*.deb examples/dispatch_combine.c* examples/cann_dispatch.cc examples/plan.c "$work/$1/ferry"
  in_home "$work/$1" 'apt-get install -y -qq --no-install-recommends ./*.deb g++ pkg-config >/dev/null
    ferry bench --ranks 2 --tokens 2 --hidden 64 --check >/dev/null
    g++ -std=c++20 dispatch_combine.cc $(pkg-config --cflags --libs ferry) -o cc && ./cc
    gcc -std=c11 dispatch_combine.c $(pkg-config --cflags --libs ferry) -o c && ./c
    g++ -std=c++20 cann_dispatch.cc $(pkg-config --cflags --libs ferry-cann) -o cann && ./cann
    gcc -std=c11 plan.c $(pkg-config --cflags --libs ferry-plan) -o plan && ./plan'
}

# A user who compares topologies needs only the command line, and UCX, which the package recommends. Runs what such a
# user runs: ferry topology, ferry plan, and ferry bench in the shape of two nodes, each with its page.
topologies_in() {
  mkdir "$work/$1/ferry"
  cp "$debs"/{libferry0,ferry-tools}*.deb "$work/$1/ferry"
  in_home "$work/$1" 'apt-get install -y -qq ./*.deb >/dev/null 2>&1
    ferry topology gpu8:2 --report topology.html | tail -1
    ferry plan ubbv2:2@port10 --model deepseek-v3 --ep 16 --tokens 4096 --report plan.html | tail -1
    ferry bench --ranks 4 --topology host:2,rank:2 --tokens 16 --hidden 512 --check --report bench.html | tail -1
    for page in topology plan bench; do grep -q "id=.data.>{" $page.html; done'
}

# Conan's recipe; it builds the consumer of tests/install against its package.
conan_package() {
  local conan=$work/conan/bin/conan
  export CONAN_HOME=$work/conan_home CCACHE_BASEDIR=$work # as for the sdist
  .venv/bin/python -m venv "$work/conan"
  "$work/conan/bin/pip" install --quiet --disable-pip-version-check conan
  "$conan" profile detect >/dev/null 2>&1
  "$conan" create . -s compiler.cppstd=20 -c tools.cmake.cmake_layout:test_folder='$TMP' >"$work/conan.log" 2>&1 || {
    tail -30 "$work/conan.log" >&2
    return 1
  }
}

wheels() {
  local python
  [ -n "${FERRY_FILES:-}" ] || scripts/wheel.sh "${pythons[@]}"
  for python in "${pythons[@]}"; do
    if [ "$python" = aarch64 ]; then
      echo "== the wheel on aarch64, under emulation"
      emulated_steps
    else
      user 60 "the wheel with $("$python" --version)" first_steps "$python"
    fi
  done
  echo "== the sdist"
  # The compiler's name and the options are those of scripts/wheel.sh, and ccache leaves this folder out of paths
  # (CCACHE_BASEDIR). So ccache has most of what is compiled here.
  CXX=c++ TMPDIR=$work CCACHE_BASEDIR=$work "$work/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps \
    -w "$work" --config-settings cmake.define.FERRY_WERROR=ON "$wheels"/ferry_ep-*.tar.gz
}

packages() {
  local release
  [ -n "${FERRY_FILES:-}" ] || scripts/deb.sh
  for release in "$@"; do
    bare_system "$release" "$release"
    user 60 "the wheel in bare $release" wheel_in "$release"
  done
  bare_system "$1" packages
  user 300 "C++ by Debian packages in bare $1" packages_in packages
  bare_system "$1" topologies
  user 300 "topologies in bare $1" topologies_in topologies
}

from_source() {
  bare_system "$1" source
  user 300 "C++ from source in bare $1" source_in source
  user 300 "Python from source, after that" python_source_in source
  user 300 "C++ by Conan" conan_package
}

case $what in
  wheels) wheels ;;
  files)
    wheels
    packages "$@"
    ;;
  source) from_source "$@" ;;
  *) echo "check_install.sh: '$what' is none of wheels, files and source" >&2; exit 2 ;;
esac
printf '%s\n' "${times[@]}"
