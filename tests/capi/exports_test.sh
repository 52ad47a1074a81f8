#!/bin/bash
# exports_test.sh <libferry.so>: what the library shows is the C ABI and the C++ API, all of the C ABI is
# there, and it has its SONAME. Called by ctest (tests/capi/CMakeLists.txt).
set -euo pipefail
library=$1
headers=$(cd "$(dirname "$0")/../../include/ferry" && pwd)
failed=0
complain() {
  echo "$*" >&2
  failed=1
}

shown=$(nm -D --defined-only --demangle "$library" | cut -d' ' -f3-)
foreign=$(grep -vE '^(ferry_[a-z_]+$|(typeinfo for |typeinfo name for |vtable for )?ferry::)' <<<"$shown" || true)
[ -z "$foreign" ] || complain "shows what is not its own: $foreign"
if grep -E '^ferry::(internal|capi)::' <<<"$shown"; then complain "shows its insides"; fi

declared=$(grep -ohE '\bferry_[a-z_]+\(' "$headers/ferry.h" | tr -d '(' | sort -u)
exported=$(grep -E '^ferry_' <<<"$shown" | sort -u)
difference=$(diff <(echo "$declared") <(echo "$exported") || true)
[ -z "$difference" ] || complain "declared (<) or exported (>), but not both: $difference"

soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname =~ ^libferry\.so\.[0-9]+\.[0-9]+$ ]] || complain "SONAME is '$soname'"

echo "$(wc -l <<<"$exported") C functions, $(grep -c '^ferry::' <<<"$shown") of C++, SONAME $soname"
exit $failed
