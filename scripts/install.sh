#!/bin/bash
# install.sh <group...>: installs what is missing for these groups: their Debian packages; for python and the groups
# that add to it, requirements.txt in the virtual environment .venv; and there requirements-<group>.txt, if there is
# one. Silent when nothing is missing. This file and requirements*.txt are the one list of what ferry needs. Called by
# every target of the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A packages=(
  [build]="g++ cmake ninja-build pkg-config libfmt-dev libhwy-dev libssl-dev libucx-dev libhwloc-dev libcli11-dev
           nlohmann-json3-dev libgmock-dev ccache"
  [test]="python3 python3-dev python3-venv iproute2 nftables libdnnl-dev"
  [style]="python3 clang-format"
  [lint]="clang-tidy"
  [model]="spin"
  [fuzz]="clang-14 libclang-rt-14-dev"
  [cross]="g++-aarch64-linux-gnu qemu-user googletest"
  [bench]="python3 libopenmpi-dev openmpi-bin"
  [python]="python3-dev python3-venv"
  [transformers]="python3-dev python3-venv"
  [jax]="python3-dev python3-venv"
  [wheel]="python3-dev python3-venv"
  [types]="python3-dev python3-venv"
  [docs]="python3-dev python3-venv"
  [release]="python3-dev python3-venv"
  [deb]="dpkg-dev python3"
  [bare]="debootstrap"
  [browser]="chromium"
  [simgrid]="libsimgrid-dev"
)

missing=()
for group in "$@"; do
  for package in ${packages[$group]}; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=absent
    [ "$state" = installed ] || missing+=("$package")
  done
done

# .venv is as the requirements say: it keeps a copy of each list that it was made from.
install_requirements() {
  local wanted=scripts/$1 made=.venv/$1
  cmp -s "$wanted" "$made" && return
  echo "installing $1 in .venv"
  .venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r "$wanted"
  cp "$wanted" "$made"
}

install_packages() {
  local install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if [ "$(id -u)" != 0 ]; then
    echo "Debian packages are missing, and only root can install them. Please run:" >&2
    echo "  sudo ${install[*]}" >&2
    exit 1
  fi
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  "${install[@]}" -qq >/dev/null
}

if [ ${#missing[@]} -gt 0 ]; then install_packages; fi
for group in "$@"; do
  [[ "${packages[$group]}" != *python3-venv* || $group = test ]] || install_requirements requirements.txt
  [ ! -f "scripts/requirements-$group.txt" ] || install_requirements "requirements-$group.txt"
done
