#!/bin/bash
# test.sh [step...]: every check of ferry, or the named ones of: format tidy release python asan tsan
# aarch64 clang-tidy. All run even if one fails; the last line is "N passed, N failed". Called by the
# Makefile, which has installed what the steps need.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
passed=0 failed=0
failures=()  # the name of each, said again at the end

# check <name> <command...>: one thing that passes or fails.
check() {
  local name=$1 begin=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    passed=$((passed + 1))
    echo "== $name: passed, $((SECONDS - begin)) s"
  else
    failed=$((failed + 1))
    failures+=("$name")
    echo "== $name: FAILED, $((SECONDS - begin)) s"
    return 1
  fi
}

build() {
  cmake --preset "$@" >build/configure.log 2>&1 || { cat build/configure.log; return 1; }
  cmake --build --preset "$1"
}

failed_tests() { sed -n 's/^\s*<testcase name="\([^"]*\)".* status="fail".*/\1/p' "$1"; }

# check_tests <preset> [cmake options]: builds a preset and runs its tests; each test counts.
check_tests() {
  local preset=$1 report=$PWD/build/$1/ctest.xml begin=$SECONDS run fail
  check "build $preset" build "$@" || return
  rm -f "$report"
  "${around_ctest[@]}" ctest --preset "$preset" --parallel "$(nproc)" --output-junit "$report"
  local verdict=$?
  run=$(grep -c '^\s*<testcase .* status="run"' "$report")
  fail=$(grep -c '^\s*<testcase .* status="fail"' "$report")
  while read -r name; do failures+=("$preset: $name"); done < <(failed_tests "$report")
  if [ $verdict != 0 ] && [ "$fail" = 0 ]; then fail=1; fi  # a test that could not start
  passed=$((passed + run)) failed=$((failed + fail))
  echo "== tests of $preset: $run passed, $fail failed, $((SECONDS - begin)) s with the build"
}

# The wheel as a user gets it, by the compiler that CMake picks: its objects are those of release, which
# ccache has. Its tests; each counts.
wheel() {
  rm -rf build/wheel
  CXX=c++ .venv/bin/pip wheel --quiet --no-build-isolation --no-deps -w build/wheel . &&
    .venv/bin/pip install --quiet --force-reinstall --no-deps build/wheel/ferry-*.whl
}

check_python() {
  local report=$PWD/build/pytest.txt begin=$SECONDS run fail
  check wheel wheel || return
  .venv/bin/python -m pytest -q -rfEs --durations=10 | tee "$report"
  run=$(sed -n 's/.*\b\([0-9][0-9]*\) passed.*/\1/p' "$report" | tail -1)
  fail=$(grep -cE '^(FAILED|ERROR) ' "$report")
  [ -n "$run" ] || fail=$((fail + 1)) # pytest itself ended
  while read -r name; do failures+=("$name"); done < <(sed -nE 's/^(FAILED|ERROR) //p' "$report")
  passed=$((passed + ${run:-0})) failed=$((failed + fail))
  echo "== tests of python: ${run:-0} passed, $fail failed, $((SECONDS - begin)) s with the build"
}

# g++ 12's ThreadSanitizer cannot start where the kernel randomises addresses by more than 28 bits.
around_ctest=(env)
if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ]; then
  around_ctest=(setarch -R)
fi

clang_tidy() {
  run-clang-tidy -quiet -p build/release "^$PWD/(src|tools)/.*\.cc$" 2>/dev/null
}

steps=("$@")
[ $# -gt 0 ] || steps=(format tidy release python asan tsan aarch64 clang-tidy)
for step in "${steps[@]}"; do
  case $step in
    format) check format scripts/format.sh --dry-run -Werror ;;
    tidy) check "tidy's rules" tests/tidy_test.py; check tidy tests/tidy.py ;;
    release) check_tests release -DFERRY_BUILD_BENCH=ON ;;
    asan) check_tests asan ;;
    python) check_python ;;
    tsan) check_tests tsan ;;
    aarch64) check sysroot scripts/sysroot.sh && check_tests aarch64 ;;
    clang-tidy) check "build release" build release && check clang-tidy clang_tidy ;;
    *) echo "test.sh: no step '$step'" >&2; exit 2 ;;
  esac
done

[ $failed = 0 ] || printf 'FAILED: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
