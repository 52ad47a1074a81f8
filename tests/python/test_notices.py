"""scripts/notices.py: each library inside a wheel, and each that is compiled in, needs a licence text."""

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("notices", ROOT / "scripts/notices.py")
notices = sys.modules["notices"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notices)

INFO = "ferry_ep-9.9.9.dist-info"
PARTS = [*sorted(notices.ALWAYS), "openssl"]
CRYPTO = "ferry_ep.libs/libcrypto-0123abcd.so.3"


def contents(parts=PARTS):
    """The files of a wheel that has these parts, of which openssl is a library."""
    components = [{"name": name, "properties": [{"name": "ferry:file", "value": CRYPTO}] * (name == "openssl")}
                  for name in parts]
    files = {f"{INFO}/sboms/ferry_ep.cdx.json": json.dumps({"components": components}), CRYPTO: "bytes"}
    files[f"{INFO}/METADATA"] = "".join(f"License-File: parts/{name}.txt\n" for name in parts)
    files.update({f"{INFO}/licenses/parts/{name}.txt": "words " * 50 for name in parts})
    return files


def missing(files):
    return notices.missing_notices(list(files), files.get)


def test_a_wheel_with_all_notices_lacks_none():
    assert missing(contents()) == []


def test_what_a_wheel_lacks_is_named():
    files = contents()
    files["ferry_ep.libs/libfmt-4f700944.so.9.1.0"] = "bytes"
    assert missing(files) == ["ferry_ep.libs/libfmt-4f700944.so.9.1.0 is of no part"]
    assert missing(contents([name for name in PARTS if name != "cli11"])) == ["cli11 is not named as compiled in"]
    for change in (lambda notice: "", lambda notice: None):
        files = contents()
        name = f"{INFO}/licenses/parts/openssl.txt"
        files[name] = change(files[name])
        if files[name] is None:
            del files[name]
        assert missing(files) == [f"openssl has no notice {name}"]
    files = contents()
    files[f"{INFO}/METADATA"] = files[f"{INFO}/METADATA"].replace("License-File: parts/openssl.txt\n", "")
    assert missing(files) == [f"openssl has no notice {INFO}/licenses/parts/openssl.txt"]
    assert missing({CRYPTO: "bytes"}) == ["no list of parts: sboms/ferry_ep.cdx.json"]


@pytest.fixture
def sysroot(tmp_path):
    """An unpacked package libx1 of the source x, without a licence text."""
    root = tmp_path / "sysroot"
    for folder in ("have", "usr/lib", "usr/share/doc/libx1"):
        (root / folder).mkdir(parents=True)
    (root / "have/libx1").write_text("x 1.2-3 arm64\n/usr/lib/\n/usr/lib/libx.so.1\n")
    (root / "usr/lib/libx.so.1").write_text("bytes")
    return root


def test_a_library_without_a_package_or_a_text_is_refused(sysroot, tmp_path):
    folder = tmp_path / "wheel"
    (folder / "ferry_ep.libs").mkdir(parents=True)
    (folder / "ferry_ep.libs/libx-0123abcd.so.1").write_text("bytes")
    debian = notices.Debian(sysroot)
    with pytest.raises(notices.NoNotice, match="libx.so.1 is of libx1, which has no .*doc/libx1/copyright"):
        notices.bundled(folder, debian, sysroot / "usr/lib")
    (sysroot / "usr/share/doc/libx1/copyright").write_text("Copyright: somebody")
    part = notices.bundled(folder, debian, sysroot / "usr/lib")["x"]
    assert (part.version, part.purl) == ("1.2-3", "pkg:deb/debian/libx1@1.2-3?arch=arm64")
    assert part.files == {"ferry_ep.libs/libx-0123abcd.so.1"} and part.text == "Copyright: somebody\n"
    (folder / "ferry_ep.libs/liby-0123abcd.so.1").write_text("bytes")
    with pytest.raises(notices.NoNotice, match="liby-0123abcd.so.1 is of no Debian package: .* has no liby.so.1"):
        notices.bundled(folder, debian, sysroot / "usr/lib")


def test_what_is_compiled_in_needs_a_project(sysroot):
    (sysroot / "usr/share/doc/libx1/copyright").write_text("see /usr/share/common-licenses/Apache-2.0.")
    debian = notices.Debian(sysroot)
    part = notices.compiled_in([sysroot / "usr/lib/libx.so.1"], debian)["x"]
    assert "Apache-2.0:\n" in part.text and "TERMS AND CONDITIONS" in part.text and not part.files
    with pytest.raises(notices.NoNotice, match="other.h is of no Debian package, and of no project"):
        notices.compiled_in([sysroot / "usr/lib/other.h"], debian)
    assert notices.compiled_in([Path("/usr/include/stdio.h")], debian) == {}  # of the toolchain


def test_headers_of_a_sysroot_inside_this_repository_are_of_others(sysroot, tmp_path, monkeypatch):
    monkeypatch.setattr(notices, "ROOT", tmp_path)
    (build := tmp_path / "build").mkdir()
    (build / "CMakeCache.txt").write_text(f"CMAKE_MAKE_PROGRAM:FILEPATH={shutil.which('ninja')}\n")
    (build / "build.ninja").write_text("rule compile\n"
                                       "  command = echo 'o: ../sysroot/usr/lib/libx.so.1 ../ours.h' > o.d && touch o\n"
                                       "  depfile = o.d\n  deps = gcc\nbuild o: compile\n")  # fmt: skip
    (tmp_path / "ours.h").touch()
    subprocess.run(["ninja", "-C", str(build)], check=True)
    assert notices.files_read(build, notices.Debian(sysroot)) == [sysroot / "usr/lib/libx.so.1"]


WHEELS = sorted(ROOT.glob("build/wheels/ferry_ep-*.whl"))


@pytest.mark.skipif(not WHEELS, reason="no wheel in build/wheels: make wheel makes it")
@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)
def test_wheels_of_make_wheel_have_their_notices(wheel, tmp_path):
    command = [sys.executable, str(ROOT / "scripts/notices.py"), "check"]
    assert subprocess.run([*command, str(wheel)]).returncode == 0
    poorer = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(poorer, "w") as part:
        for name in whole.namelist():
            if not name.endswith("parts/openssl.txt"):
                part.writestr(name, whole.read(name))
    done = subprocess.run([*command, str(poorer)], capture_output=True, text=True)
    assert done.returncode == 1 and "openssl has no notice" in done.stdout
