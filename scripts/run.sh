#!/bin/bash
# run.sh: the main job. Builds the ferry command line and moves real skew through 8 processes in the
# shape of DeepSeek-V3, decode then prefill, with every result compared with the oracle. Called by
# `make run`. Exits 0 only if nothing was wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# On a terminal the build shows its progress; else its output is shown only if it fails. The libraries are built for
# `cmake --install`.
cmake --preset release >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
build=(cmake --build --preset release --target ferry ferry_cann ferry_plan ferry_tool)
if [ -t 1 ]; then "${build[@]}"; else "${build[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }; fi

build/release/tools/ferry bench --ranks 8 --mode processes --pin --sweep tokens=128,1024 \
  --hidden 7168 --experts 256 --top-k 8 --routing real --check
