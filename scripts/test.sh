#!/bin/bash
# test.sh [--go-on] [--known] <step...>: runs checks of ferry: format tidy release python release+python asan
# asan+python-long tsan transformers transformers-example jax torch long aarch64 clang-tidy fuzz wheel types docs
# journey source bare. All run even if one fails. Steps that prepare: install=<groups> (if it fails, no further step
# runs); venv installs the group python, in the background until a step needs it; begin-clang-tidy runs clang-tidy in
# the background until the step clang-tidy. Prints what each step took, and as the last line "N passed, N failed"; with
# --go-on both include the steps of the runs before. With --known a step that passed on this commit in an earlier run
# counts as it did there, and is not run again. Called by the Makefile.
set -uo pipefail
cd "$(dirname "$0")/.."
export CI=${CI:-true} # scikit-build-core gives cmake 5 s to say its version, and 20 s there; a busy machine needs them
# Where this variable is set, each of the hundreds of processes that import torch compiles its 1,100 modules, and an
# import takes 3 s instead of 1.3 s.
unset PYTHONDONTWRITEBYTECODE
mkdir -p build
venv= lint=
steps_file=build/steps.txt # per line: seconds, passed, failed, what; or a name after "FAILED" or "AGAIN"
seconds_file=build/seconds.txt
if [ "${1:-}" = --go-on ]; then shift; else rm -f "$steps_file" "$seconds_file"; fi
touch "$steps_file"
use_known=
if [ "${1:-}" = --known ]; then shift; use_known=1; fi

# unchanged_commit: prints HEAD, if the working tree equals it and FERRY_STRESS does not change how long tests run; else
# nothing.
unchanged_commit() {
  [ -z "${FERRY_STRESS:-}" ] && [ -z "$(git status --porcelain 2>&1)" ] && git rev-parse HEAD
}

# What passed on this commit: build/passed/<step> has the lines that the step added to the steps file. With another
# commit or a changed working tree the folder is removed.
passed_folder=build/passed
commit=$(unchanged_commit)
[ "$(cat $passed_folder/commit 2>/dev/null)" = "${commit:-none}" ] || rm -rf $passed_folder

# known <step>: whether it passed before and need not run again.
known() { [ -n "$use_known" ] && [ -e "$passed_folder/$1" ]; }

# remember <step> <number of lines of the steps file before it>: notes for `known` that the step passed, if it did.
remember() {
  [ -n "$commit" ] && [ "$(unchanged_commit)" = "$commit" ] || return
  mkdir -p $passed_folder
  echo "$commit" >$passed_folder/commit
  tail -n +$(($2 + 1)) "$steps_file" >$passed_folder/new
  if awk '!/^(AGAIN|FAILED)/ { ran += 1; failed += $5 } END { exit !ran || failed > 0 }' $passed_folder/new; then
    mv $passed_folder/new "$passed_folder/$1"
  fi
}

# note <seconds> <passed> <failed> <what>
note() {
  printf '%6d s %6d passed %4d failed  %s\n' "$@" >>"$steps_file"
  printf '== %s: %d passed, %d failed, %d s\n' "$4" "$2" "$3" "$1"
}

# check <name> <command...>: one thing that passes or fails.
check() {
  local name=$1 begin=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    note $((SECONDS - begin)) 1 0 "$name"
  else
    note $((SECONDS - begin)) 0 1 "$name"
    echo "FAILED: $name" >>"$steps_file"
    return 1
  fi
}

build() {
  cmake --preset "$@" >build/configure.log 2>&1 || { cat build/configure.log; return 1; }
  cmake --build --preset "$1"
}

# run_tests <preset> [ctest options]: each test of each run counts.
run_tests() {
  local preset=$1 begin=$SECONDS counts verdict jobs
  jobs=$(nproc)
  rm -rf build/"$preset"/{results,ctest.xml,again.xml}
  # A third of the processors is idle while ranks of two tests wait. Under sanitizers tests need the time themselves.
  [ "$preset" = release ] && jobs=$((jobs * 3 / 2))
  "${around_ctest[@]}" ctest --preset "$@" --parallel "$jobs" --output-junit "$PWD/build/$preset/ctest.xml"
  verdict=$?
  if [ $verdict != 0 ]; then
    "${around_ctest[@]}" ctest --preset "$@" --rerun-failed --output-junit "$PWD/build/$preset/again.xml"
    verdict=$?
  fi
  mapfile -t counts < <(scripts/count_tests.py "build/$preset")
  read -r passed failed skipped <<<"${counts[0]:-0 0 0}"
  if [ $verdict != 0 ] && [ "$failed" = 0 ]; then failed=1; fi # ctest itself
  note $((SECONDS - begin)) "$passed" "$failed" "tests of $preset${2:+ ${*:2}}, $skipped skipped"
  for name in "${counts[@]:1}"; do echo "${name/: /: $preset: }" >>"$steps_file"; done
}

# check_tests <preset> [cmake options]: builds a preset and runs its tests.
check_tests() { check "build $1" build "$@" && run_tests "$1"; }

# The wheel as a user gets it. It is built in release's folder, so its library and command line are
# those just tested, and only the extension is compiled.
wheel() {
  rm -rf build/wheel
  CXX=c++ .venv/bin/python -m pip wheel --quiet --no-build-isolation --no-deps -w build/wheel \
    --config-settings build-dir=build/release --config-settings cmake.define.FERRY_BUILD_TESTS=ON . &&
    .venv/bin/python -m pip install --quiet --force-reinstall --no-deps build/wheel/ferry_ep-*.whl
}

# What the tests of Python need.
prepare_python() {
  # Without a number `wait` would wait for every child and forget how each ended.
  [ -z "$venv" ] || check "wait for the virtual environment" wait "$venv" || { cat build/venv.log; return 1; }
  check "wheel" wheel
}

# note_versions <what> <passed> <failed> <distributions...>: for the table of docs/versions.md.
note_versions() { .venv/bin/python scripts/versions.py record "$@"; }

# run_pytest <what> [pytest options]: one test at a time for each processor, as tests often wait. What fails runs again
# by itself. Fails if one failed again.
run_pytest() {
  local report=$PWD/build/pytest.txt begin=$SECONDS run fail again what=$1
  shift
  .venv/bin/python -m pytest -q -rfEs --durations=10 -n "$(nproc)" "$@" | tee "$report"
  read -r run fail < <(count_pytest "$report")
  if [ "$fail" -gt 0 ] && [ "$run" -gt 0 ]; then
    failures_of "$report" >build/failed_first.txt
    .venv/bin/python -m pytest -q -rfEs --last-failed --last-failed-no-failures none "$@" | tee "$report"
    read -r again fail < <(count_pytest "$report")
    run=$((run + again))
    failures_of "$report" | grep -vxFf - build/failed_first.txt | sed 's/^/AGAIN: python: /' >>"$steps_file"
  fi
  note $((SECONDS - begin)) "$run" "$fail" "tests of $what"
  note_versions "tests/python, $what" "$run" "$fail" torch numpy ml_dtypes mpi4py libucx-cu12
  failures_of "$report" | sed 's/^/FAILED: python: /' >>"$steps_file"
  [ "$fail" = 0 ]
}

# begin_pytest <as run_pytest>: runs it beside tests of C++, as ranks often wait. end_pytest awaits and shows it.
begin_pytest() {
  beside=
  if prepare_python; then run_pytest "$@" >build/pytest.log 2>&1 & beside=$!; fi
}
end_pytest() { [ -z "$beside" ] || { wait "$beside"; cat build/pytest.log; }; }

# failures_of <report of pytest>: the tests that failed.
failures_of() { sed -nE 's/^(FAILED|ERROR) ([^ ]*).*/\2/p' "$1"; }

# count_pytest <report of pytest>: prints how many passed and failed.
count_pytest() {
  local passed failed
  passed=$(sed -n 's/.*\b\([0-9][0-9]*\) passed.*/\1/p' "$1" | tail -1)
  failed=$(failures_of "$1" | wc -l)
  tail -1 "$1" | grep -qE ' (passed|failed|deselected|skipped)' || failed=$((failed + 1)) # pytest itself ended
  echo "${passed:-0} $failed"
}

# g++ 12's ThreadSanitizer cannot start where the kernel randomises addresses by more than 28 bits.
around_ctest=(env)
if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ]; then
  around_ctest=(setarch -R)
fi

clang_tidy() {
  cmake --preset lint >build/configure-lint.log 2>&1 || { cat build/configure-lint.log; return 1; }
  scripts/clang_tidy.py build/lint
}

# Starts clang-tidy. The kernel runs it only while nothing else wants a processor, so it delays no test.
begin_clang_tidy() {
  (chrt --idle --pid 0 $BASHPID && clang_tidy) >build/clang-tidy.log 2>&1 &
  lint=$!
}

# Runs clang-tidy, or waits for its end if begin_clang_tidy started it.
end_clang_tidy() {
  if [ -z "$lint" ]; then clang_tidy; else wait "$lint" || { cat build/clang-tidy.log; return 1; }; fi
}

# fuzz_one <target>: fuzzes for fifteen seconds. The corpus stays in build; an input that fails is left in build/fuzz,
# and is to be kept in tests/fuzz/seeds.
fuzz_one() {
  local name
  name=$(basename "$1" _fuzz)
  mkdir -p "build/fuzz/corpus/$name"
  "$1" -max_total_time=15 -timeout=10 -artifact_prefix="build/fuzz/found-$name-" "build/fuzz/corpus/$name" \
    "tests/fuzz/seeds/$name" >"build/fuzz/$name.log" 2>&1 || { tail -40 "build/fuzz/$name.log"; return 1; }
}
export -f fuzz_one

# All targets, one on each processor.
fuzz() { printf '%s\0' build/fuzz/tests/fuzz/*_fuzz | xargs -0 -P "$(nproc)" -I{} bash -c 'fuzz_one {}'; }

for step in "$@"; do
  if known "$step"; then
    echo "== $step: passed on this commit in an earlier run"
    sed '/^AGAIN/!s/$/, in an earlier run/' "$passed_folder/$step" >>"$steps_file"
    continue
  fi
  rm -f "$passed_folder/$step"
  lines=$(wc -l <"$steps_file")
  case $step in
    format) check "format" scripts/format.sh --dry-run -Werror ;;
    tidy)
      check "tidy's rules" tests/tidy_test.py
      check "tidy" tests/tidy.py
      check "a draw of comments and sentences" tests/draw_prose.py
      check "commit subjects" tests/commits.py
      ;;
    release) FERRY_STRESS=${FERRY_STRESS:-0.1} check_tests release ;;
    long)
      check "build release and bench" build release -DFERRY_BUILD_BENCH=ON -DFERRY_TEST_TIMEOUT=1500 &&
        FERRY_STRESS=1 run_tests release -C long -L long
      ;;
    python) prepare_python && run_pytest python -m "not long" ;;
    release+python) # after them the tests that need the machine alone
      check "build release" build release || continue
      begin_pytest python -m "not long"
      FERRY_STRESS=${FERRY_STRESS:-0.1} run_tests release -LE alone
      end_pytest
      run_tests release -L alone
      ;;
    transformers) # what the step python skips without transformers; the example is of the next step
      check "install transformers" scripts/install.sh transformers && check "wheel" wheel &&
        run_pytest transformers tests/python/test_transformers*.py &&
        note_versions "tests of transformers" 1 0 transformers accelerate
      ;;
    transformers-example) # with the wheel of an earlier step
      check "install transformers" scripts/install.sh transformers &&
        check "example of transformers" .venv/bin/python -m pytest -q tests/python/test_examples.py -k transformers
      ;;
    jax) # with the wheel of an earlier step
      check "install jax" scripts/install.sh jax &&
        check "tests of jax" .venv/bin/python -m pytest -q -rfEs tests/python/test_jax.py &&
        note_versions "tests/python/test_jax.py" 1 0 jax jaxlib numpy
      ;;
    journey)
      check "build traced" build traced &&
        check "the journey of a token" tests/journey/journey.py build/traced
      ;;
    torch) check "the backend of torch.distributed with a newer torch" scripts/check_with.sh torch ;;
    asan) FERRY_STRESS=${FERRY_STRESS:-0.1} check_tests asan ;;
    asan+python-long)
      check "build asan" build asan || continue
      begin_pytest "python, the long ones" -m long
      FERRY_STRESS=${FERRY_STRESS:-0.1} run_tests asan
      end_pytest
      ;;
    tsan) FERRY_STRESS=${FERRY_STRESS:-0.25} check_tests tsan ;;
    aarch64) check "sysroot" scripts/sysroot.sh && check_tests aarch64 ;;
    begin-clang-tidy) known clang-tidy || begin_clang_tidy ;;
    clang-tidy) check "clang-tidy" end_clang_tidy ;;
    fuzz)
      check "build fuzz" build fuzz && check "fuzz" fuzz
      ;;
    wheel) check "wheel" wheel ;;
    types) check "types" .venv/bin/python tests/types/check.py ;;
    docs) check "the site" .venv/bin/python scripts/site.py ;;
    bare) check "first steps with wheels and packages" scripts/check_install.sh files ;;
    source) check "first steps from source" scripts/check_install.sh source ;;
    install=*)
      IFS=, read -ra groups <<<"${step#*=}"
      check "install ${groups[*]}" scripts/install.sh "${groups[@]}" || break
      continue # what the machine has may change
      ;;
    venv) scripts/install.sh python >build/venv.log 2>&1 & venv=$! ;;
    *) echo "test.sh: no step '$step'" >&2; exit 2 ;;
  esac
  remember "$step" "$lines"
done

grep -E '^(AGAIN|FAILED)' "$steps_file"
grep -vE '^(AGAIN|FAILED)' "$steps_file"
in_all=$((SECONDS + $(cat "$seconds_file" 2>/dev/null || echo 0)))
echo $in_all >"$seconds_file"
awk -v seconds=$in_all '!/^(AGAIN|FAILED)/ { passed += $3; failed += $5 }
     / in an earlier run$/ { earlier += $3 }
     END { printf "%6d s in all\n", seconds
           if (earlier) printf "%d of those that passed did so in an earlier run on this commit\n", earlier
           printf "%d passed, %d failed\n", passed, failed
           exit failed > 0 }' \
  "$steps_file" | tee build/summary.txt
