#!/bin/bash
# run.sh: the main job. Builds the ferry command line and moves real skew through 8 processes in the
# shape of DeepSeek-V3, decode then prefill, with every result compared with the oracle. Called by
# `make run`. Exits 0 only if nothing was wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Quiet unless it fails.
{ cmake --preset release && cmake --build --preset release --target ferry_tool; } >"$log" 2>&1 ||
  { cat "$log" >&2; exit 1; }

build/release/tools/ferry bench --ranks 8 --mode processes --pin --sweep tokens=128,1024 \
  --hidden 7168 --experts 256 --top-k 8 --routing real --check
