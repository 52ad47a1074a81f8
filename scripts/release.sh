#!/bin/bash
# release.sh ready: refuses a tree that no version can be made of.
# release.sh files <what was checked> [python...]: writes build/release-VERSION: wheels by these Pythons (by default
# .venv's, those of python3.10, 3.12, 3.13 and 3.14 that start, and a cross build for aarch64), sdist, Debian packages,
# site, lists of parts, notices, the versions that ran, and checksums. Checks the files as the upload would, and tries
# the wheels and packages as a user does; with an empty <what was checked> the files are a trial, and only the wheels
# are tried. Nothing is published and no tag is set: the last lines say how. Called by `make release`.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^project(ferry VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
out=build/release-$version
tag=v$version

refuse() {
  echo "release.sh: $*" >&2
  exit 1
}

ready() {
  local changed tagged
  changed=$(git status --porcelain)
  [ -z "$changed" ] || refuse "the working tree differs from HEAD: $(head -3 <<<"$changed" | tr '\n' ' ')"
  grep -qE "^## $version, [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || refuse "CHANGELOG.md has no '## $version, DATE'"
  ! grep -q '^result = .*dev' pyproject.toml || refuse "pyproject.toml makes a version of development of $version"
  tagged=$(git rev-parse --quiet --verify "$tag^{commit}") || return 0
  [ "$tagged" = "$(git rev-parse HEAD)" ] || refuse "$tag is ${tagged:0:12}, HEAD is $(git rev-parse --short=12 HEAD)"
}

# The Pythons that build wheels, or try one: from 3.12 on one wheel serves all.
default_pythons() {
  local python
  echo .venv/bin/python
  for python in python3.{10,12,13,14}; do
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then echo "$python"; fi
  done
  echo aarch64
}

site() {
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall --no-index \
    --find-links build/wheels ferry-ep
  .venv/bin/python scripts/site.py
  tar --create --gzip --file "$out/ferry-$version-site.tar.gz" --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$SOURCE_DATE_EPOCH" --transform "s,^site,ferry-$version-site," --directory build site
}

files() {
  local checked=$1 python tried wheel wheels
  shift
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  if [ $# = 0 ]; then mapfile -t pythons < <(default_pythons); else pythons=("$@"); fi
  scripts/wheel.sh "${pythons[@]}"
  scripts/deb.sh
  rm -rf "$out"
  mkdir -p "$out"
  site
  cp build/wheels/*.whl build/wheels/*.tar.gz build/deb/*.deb "$out"
  for wheel in "$out"/*.whl; do .venv/bin/python scripts/notices.py extract "$wheel"; done
  .venv/bin/python -m twine check --strict "$out"/*.whl "$out/ferry_ep-$version.tar.gz"
  tried=files
  [ -n "$checked" ] || tried=wheels # a trial needs no bare system
  FERRY_FILES=$out FERRY_PYTHONS="${pythons[*]}" scripts/check_install.sh $tried
  scripts/versions.py print >"$out/versions.md"
  (cd "$out" && sha256sum -- * >SHA256SUMS)
  ls -sh "$out"
  wheels=$(cd "$out" && echo *.whl)
  for python in cp310 cp311 cp312; do
    [[ $wheels == *"-$python-"*x86_64* ]] || echo "no wheel $python for x86-64: PYTHONS=\"..\" names more Pythons"
  done
  if [ -z "$checked" ]; then
    echo "make check was left out: these files are a trial, not a version."
  else
    echo "git tag -a $tag -m 'ferry $version' $(git rev-parse HEAD)   # then push it"
    echo ".venv/bin/python -m twine upload $out/*.whl $out/ferry_ep-$version.tar.gz"
  fi
}

"$@"
