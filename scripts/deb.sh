#!/bin/bash
# deb.sh: the Debian packages libferry0.2, libferry-cann0.2, libferry-plan0.2, libferry-dev and ferry-tools in
# build/deb.
# Called by `make deb`.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf build/deb
cmake --preset release >/dev/null
cmake --build --preset release --target ferry ferry_cann ferry_plan ferry_tool >/dev/null
python3 scripts/notices.py text build/release >build/release/copyright
cpack --config build/release/CPackConfig.cmake -B build/deb >build/deb.log || { cat build/deb.log >&2; exit 1; }
rm -rf build/deb/_CPack_Packages
ls -sh build/deb
