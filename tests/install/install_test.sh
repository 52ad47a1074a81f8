#!/bin/bash
# install_test.sh <build folder> <C++ compiler>: install ferry, move the prefix, and consume it from there,
# in C++ and in C, by find_package and by pkg-config. Called by ctest (tests/install/CMakeLists.txt).
set -euo pipefail
build=$1
export CXX=$2 CC=${CC:-cc}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() { echo "== $*"; }

step "install, then move the prefix: nothing may remember where it was"
cmake --install "$build" --prefix "$work/installed" >"$work/install.log"
mv "$work/installed" "$work/moved"
library=$(find "$work/moved" -name libferry.so)
libraries=${library%/*}
export PKG_CONFIG_PATH=$libraries/pkgconfig
export LD_LIBRARY_PATH=$libraries

step "public headers compile alone, with a strict user's warnings, and name no third party"
for header in "$work"/moved/include/ferry/*.h; do
  echo "#include <ferry/${header##*/}>" |
    "$CXX" -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -I"$work/moved/include" -fsyntax-only -x c++ -
done
for header in ferry ferry_plan c_enums c_structs; do
  echo "#include <ferry/$header.h>" |
    "$CC" -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wc++-compat -Werror -I"$work/moved/include" -fsyntax-only -x c -
done
if grep -nE '#include *[<"](fmt|hwy|hwloc|nlohmann|CLI)' -r "$work/moved/include"; then exit 1; fi

step "the libraries export what their lists say"
for name in ferry ferry_cann ferry_plan; do "$here/../capi/exports_test.sh" "$libraries/lib$name.so"; done

for consumer in consumer consumer_c; do
  step "find_package(ferry): $consumer"
  cmake -S "$here/$consumer" -B "$work/$consumer" -DCMAKE_PREFIX_PATH="$work/moved" >"$work/configure.log"
  cmake --build "$work/$consumer"
  "$work/$consumer/$consumer"
done
"$work/consumer/consumer_cann"
"$work/consumer/consumer_plan"

step "pkg-config ferry"
read -ra flags < <(pkg-config --cflags --libs ferry)
"$CXX" -std=c++20 -Wall -Wextra -Werror "$here/../../examples/dispatch_combine.cc" "${flags[@]}" \
  -o "$work/by_pkg_config"
"$work/by_pkg_config"
"$CC" -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/../../examples/dispatch_combine.c" "${flags[@]}" \
  -o "$work/by_pkg_config_c"
"$work/by_pkg_config_c"

step "pkg-config ferry-cann"
read -ra flags < <(pkg-config --cflags --libs ferry-cann)
"$CXX" -std=c++20 -Wall -Wextra -Werror "$here/../../examples/cann_dispatch.cc" "${flags[@]}" \
  -o "$work/by_pkg_config_cann"
"$work/by_pkg_config_cann"

step "pkg-config ferry-plan"
read -ra flags < <(pkg-config --cflags --libs ferry-plan)
"$CC" -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/../../examples/plan.c" "${flags[@]}" \
  -o "$work/by_pkg_config_plan"
"$work/by_pkg_config_plan"

step "libferry_cann and libferry_plan find libferry beside them without LD_LIBRARY_PATH"
for name in ferry_cann ferry_plan; do
  if env -u LD_LIBRARY_PATH ldd "$libraries/lib$name.so" | grep "not found"; then exit 1; fi
done

step "the other programs do not need libferry_cann or libferry_plan"
for program in by_pkg_config by_pkg_config_c consumer/consumer consumer_c/consumer_c; do
  if readelf -d "$work/$program" | grep -E "libferry_(cann|plan)"; then exit 1; fi
done

if command=$(find "$work/moved/bin" -name ferry 2>/dev/null) && [ -n "$command" ]; then
  step "the command line starts"
  "$command" --help >/dev/null
fi
