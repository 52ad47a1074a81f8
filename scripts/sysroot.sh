#!/bin/bash
# sysroot.sh: fills build/aarch64-sysroot with Debian's arm64 packages of the libraries that ferry
# links, for cmake/aarch64.cmake; silent when it is there. apt gets a state of its own, so the host
# needs no foreign architecture and the caller need not be root. Called by scripts/test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=$PWD/build/aarch64-sysroot
packages=(libfmt-dev libfmt9 libhwy-dev libhwy1 libssl-dev libssl3)
[ "$(cat "$sysroot/complete" 2>/dev/null)" != "${packages[*]}" ] || exit 0

echo "fetching ${packages[*]} for arm64"
rm -rf "$sysroot"
mkdir -p "$sysroot"/apt/{lists,archives}/partial
cd "$sysroot/apt"
touch status
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Acquire::Languages=none
  -o "Dir::State=$PWD" -o "Dir::State::status=$PWD/status" -o "Dir::Cache=$PWD"
  -o Debug::NoLocking=true -o APT::Sandbox::User=root
  -o APT::Update::Post-Invoke= -o APT::Update::Post-Invoke-Success=)
apt-get "${options[@]}" update
apt-get "${options[@]}" download "${packages[@]}"
for archive in *.deb; do
  dpkg -x "$archive" "$sysroot"
done
rm -rf "$sysroot/apt"
echo "${packages[*]}" >"$sysroot/complete"
