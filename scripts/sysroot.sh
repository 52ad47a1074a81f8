#!/bin/bash
# sysroot.sh [python]: fills build/aarch64-sysroot with Debian's arm64 packages of the libraries that ferry links, for
# cmake/aarch64.cmake; with "python" also with what a wheel needs, and with build/aarch64-sysroot/python, an arm64
# Python under emulation. Silent when they are there. apt gets a state of its own, so the host needs no foreign
# architecture and the caller need not be root. Called by scripts/test.sh and scripts/wheel.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=$PWD/build/aarch64-sysroot
libraries=$sysroot/usr/lib/aarch64-linux-gnu:$sysroot/lib/aarch64-linux-gnu
packages=(libfmt-dev libfmt9 libhwy-dev libhwy1 libssl-dev libssl3)
if [ "${1:-}" = python ]; then
  packages+=(libhwloc-dev libhwloc15 libudev1 libucx-dev libcli11-dev nlohmann-json3-dev libpython3.11-dev
    python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libexpat1 zlib1g libffi8)
fi
missing=()
for package in "${packages[@]}"; do
  [ -s "$sysroot/have/$package" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "fetching ${missing[*]} for arm64"
rm -rf "$sysroot/apt"
mkdir -p "$sysroot"/{have,apt/{lists,archives}/partial}
cd "$sysroot/apt"
touch status
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Acquire::Languages=none
  -o "Dir::State=$PWD" -o "Dir::State::status=$PWD/status" -o "Dir::Cache=$PWD"
  -o Debug::NoLocking=true -o APT::Sandbox::User=root
  -o APT::Update::Post-Invoke= -o APT::Update::Post-Invoke-Success=)
apt-get "${options[@]}" update
apt-get "${options[@]}" download "${missing[@]}"
# have/PACKAGE: source, version and architecture, then the files of the package (scripts/notices.py).
for archive in *.deb; do
  dpkg -x "$archive" "$sysroot"
  {
    dpkg-deb --show --showformat='${source:Package} ${Version} ${Architecture}\n' "$archive"
    dpkg-deb --fsys-tarfile "$archive" | tar --list | sed 's/^\.//'
  } >"$sysroot/have/${archive%%_*}"
done
cd "$sysroot"
rm -rf apt
cat >python <<END
#!/bin/sh
exec qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$libraries $sysroot/usr/bin/python3.11 "\$@"
END
chmod +x python
touch complete
