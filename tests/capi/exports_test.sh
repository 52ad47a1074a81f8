#!/bin/bash
# exports_test.sh <libferry.so, libferry_cann.so or libferry_plan.so> [--write]: the library exports the names of its
# exports.txt and no others, they are its own, all functions of its C header are there, it has its SONAME, and libferry
# has nothing of the planner. With --write, exports.txt is made from the library first. Called by ctest
# (CMakeLists.txt) and by tests/install/install_test.sh.
set -euo pipefail
export LC_ALL=C # one order on all machines
library=$1
name=$(basename "$library")
name=${name%%.so*}
root=$(cd "$(dirname "$0")/../.." && pwd)
failed=0
complain() {
  echo "$name: $*" >&2
  failed=1
}

error_type='(typeinfo for |typeinfo name for |vtable for )ferry::Error'
case $name in
  libferry) list=src/exports.txt header=ferry/ferry.h c_name='ferry_[a-z_]+' own='ferry::' ;;
  libferry_cann) list=src/cann/exports.txt header=ferry/aclnn.h c_name='(acl|Hccl)[A-Za-z0-9]+' own='ferry::cann::' ;;
  libferry_plan) list=src/plan/exports.txt header=ferry/ferry_plan.h c_name='ferry_plan_[a-z_]+' own='ferry::' ;;
  *) complain "no such library of ferry" && exit 1 ;;
esac

# A constructor has two symbols of one demangled name.
exported=$(nm -D --defined-only --demangle "$library" | cut -d' ' -f3- | sort -u)
if [ "${2:-}" = --write ]; then echo "$exported" >"$root/$list"; fi
difference=$(diff "$root/$list" - <<<"$exported" || true)
[ -z "$difference" ] || complain "in $list (<) or exported (>), but not both:
$difference
If the change is meant, run tests/capi/exports_test.sh $library --write, and add a line to CHANGELOG.md."

foreign=$(grep -vE "^($c_name$|$own|$error_type$)" <<<"$exported" || true)
[ -z "$foreign" ] || complain "exports what is not its own: $foreign"
internal=$(grep -E "^$own(internal|capi|cann)::" <<<"$exported" || true)
[ -z "$internal" ] || complain "exports names that users must not see here: $internal"

declared=$(cpp -P -I "$root/include" -include "$header" /dev/null | grep -oE "\b$c_name\(" | tr -d '( ' | sort -u)
difference=$(diff <(echo "$declared") <(grep -E "^$c_name$" <<<"$exported") || true)
[ -z "$difference" ] || complain "in $header (<) or exported (>), but not both: $difference"

if [ "$name" = libferry ]; then
  planner='ferry_plan|ferry::(plan\(|Machine|internal::(Forest|Resources))'
  planner=$(nm --demangle "$library" | grep -E "$planner" || true)
  [ -z "$planner" ] || complain "has a part of the planner: $planner"
fi

soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname =~ ^$name\.so\.[0-9]+\.[0-9]+$ ]] || complain "SONAME is '$soname'"

echo "$name: $(wc -l <<<"$declared") C functions, $(grep -c "^$own" <<<"$exported") names of C++, SONAME $soname"
exit $failed
