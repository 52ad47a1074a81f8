#!/bin/bash
# install.sh <group...>: installs the Debian packages of these groups that are missing; silent when
# nothing is. The one list of what ferry needs. Called by every target of the Makefile.
set -euo pipefail

declare -A packages=(
  [build]="g++ cmake ninja-build pkg-config libfmt-dev libhwy-dev libhwloc-dev libcli11-dev
           nlohmann-json3-dev libgmock-dev"
  [test]="python3 python3-numpy ccache"
  [style]="python3 clang-format clang-tidy"
  [model]="spin"
  [cross]="g++-aarch64-linux-gnu qemu-user googletest"
  [bench]="python3 libopenmpi-dev openmpi-bin"
)

missing=()
for group in "$@"; do
  for package in ${packages[$group]}; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=absent
    [ "$state" = installed ] || missing+=("$package")
  done
done
[ ${#missing[@]} -gt 0 ] || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" != 0 ]; then
  echo "Debian packages are missing, and only root can install them. Please run:" >&2
  echo "  sudo ${install[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
"${install[@]}" -qq >/dev/null
