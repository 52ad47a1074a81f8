#!/bin/bash
# format.sh [--dry-run -Werror]: clang-format over every file of C++ and CUDA. Called by the Makefile and test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
find include src python tools tests bench examples -regex '.*\.\(cc\|c\|h\|cu\|cuh\)' | sort |
  xargs clang-format -i "$@"
