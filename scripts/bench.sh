#!/bin/bash
# bench.sh suite|gallery [options]: builds ferry, its Python package and, if MPI is installed, the programs of MPI that
# ferry is compared with; then runs bench/suite/suite.py or gallery.py. Called by `make bench` and `make gallery`,
# which have made .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

targets=(ferry_tool) mpi=OFF
if command -v mpicxx >/dev/null; then targets+=(mpi_bench mpi_collectives) mpi=ON; fi

# The output of the build is shown only if it fails.
{ cmake --preset release -DFERRY_BUILD_BENCH=$mpi &&
  cmake --build --preset release --target "${targets[@]}" &&
  .venv/bin/python -m pip install --no-build-isolation --no-deps --force-reinstall .; } >"$log" 2>&1 ||
  { cat "$log" >&2; exit 1; }

.venv/bin/python "bench/suite/$1.py" --build build/release "${@:2}"
