#!/bin/bash
# exports_test.sh <libferry.so>: what the library shows is the C ABI, CANN's C API and the C++ API, all of both C
# headers is there, and it has its SONAME. Called by ctest (tests/capi/CMakeLists.txt).
set -euo pipefail
library=$1
include=$(cd "$(dirname "$0")/../../include" && pwd)
failed=0
complain() {
  echo "$*" >&2
  failed=1
}

c_name='(ferry_[a-z_]+|(acl|Hccl)[A-Za-z0-9]+)'
shown=$(nm -D --defined-only --demangle "$library" | cut -d' ' -f3-)
foreign=$(grep -vE "^($c_name$|(typeinfo for |typeinfo name for |vtable for )?ferry::)" <<<"$shown" || true)
[ -z "$foreign" ] || complain "shows what is not its own: $foreign"
if grep -E '^ferry::(internal|capi)::' <<<"$shown"; then complain "shows its insides"; fi

declared=$(cpp -P -I "$include" -include ferry/ferry.h -include ferry/aclnn.h /dev/null | grep -oE "\b$c_name\(" |
  tr -d '( ' | sort -u)
exported=$(grep -E "^$c_name$" <<<"$shown" | sort -u)
difference=$(diff <(echo "$declared") <(echo "$exported") || true)
[ -z "$difference" ] || complain "declared (<) or exported (>), but not both: $difference"

soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname =~ ^libferry\.so\.[0-9]+\.[0-9]+$ ]] || complain "SONAME is '$soname'"

echo "$(wc -l <<<"$exported") C functions, $(grep -c '^ferry::' <<<"$shown") of C++, SONAME $soname"
exit $failed
