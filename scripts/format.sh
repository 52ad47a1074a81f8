#!/bin/bash
# format.sh [--dry-run -Werror]: clang-format over every C++ file. Called by the Makefile and test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
find include src python tools tests bench examples -name '*.cc' -o -name '*.c' -o -name '*.h' | sort |
  xargs clang-format -i "$@"
