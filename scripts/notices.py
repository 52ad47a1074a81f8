#!/usr/bin/env python3
"""notices.py: what a package of ferry carries of other projects, with their licences.

    notices.py wheel WHEEL BUILD [--sysroot DIR]   puts the notices and a list of parts (SBOM) into a repaired wheel
    notices.py text BUILD       prints the notices of what is compiled in, for Debian packages
    notices.py extract WHEEL    writes its list of parts and its notices beside it
    notices.py check WHEEL      exits with 1 unless each part of a wheel has a notice

There are two kinds of parts: libraries that auditwheel put into the wheel, and libraries whose headers or archives were
compiled in, as ninja's list of the files that were read shows. The texts are those of Debian's packages, of nanobind
and of CUDA. A part without a text is an error. The SBOM is CycloneDX, where PEP 770 has it. Called by scripts/wheel.sh,
scripts/deb.sh and scripts/release.sh; a wheel's parts need requirements-wheel.txt."""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Compilers and interpreters: their licences let programs carry what they compile in, and the wheel has none of their
# libraries.
TOOLCHAIN = re.compile(r"(libstdc\+\+|libgcc)-\d+-dev|libc6-dev|linux-libc-dev|libpython3|python3")
ALWAYS = {"cli11", "fmtlib", "highway", "nanobind", "nlohmann-json3"}  # every wheel has these compiled in

RULE = "\n" + "=" * 78 + "\n"


class NoNotice(Exception):
    pass


@dataclasses.dataclass
class Part:
    """A project, and what of it the package has: files of the wheel, or "" for what is compiled in."""

    name: str
    version: str
    purl: str
    text: str
    files: set = dataclasses.field(default_factory=set)


def with_common_licenses(text, root):
    """The text of a copyright file, with the texts of the common licences that it refers to by their paths."""
    names = sorted(set(re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", text)))
    return "\n\n".join([text.rstrip(), *(f"{name}:\n\n{(root / name).read_text()}" for name in names)]) + "\n"


class Debian:
    """The Debian packages of this machine, or those that scripts/sysroot.sh unpacked."""

    def __init__(self, sysroot=None):
        self.root = Path(sysroot or "/").resolve()
        self.owners = {}  # of a sysroot: {file: package}
        for listed in (self.root / "have").glob("*") if sysroot else ():
            self.owners.update(dict.fromkeys(listed.read_text().split("\n")[1:], listed.name))

    def has(self, file):
        return self.owners and file.is_relative_to(self.root)

    def packages_of(self, files):
        """{file: package}, without files of no package."""
        names = [str(file) for file in files if not self.has(file)]
        command = ["dpkg-query", "--search", *names]  # all at once: each search reads dpkg's whole list of files
        listed = subprocess.run(command, capture_output=True, text=True).stdout if names else ""
        owners = {name: package for package, name in re.findall(r"^([^:,\s]+)(?::\w+)?: (/.*)$", listed, flags=re.M)}
        found = {file: self.owners.get("/" + str(file.relative_to(self.root))) for file in files if self.has(file)}
        found.update({file: owners.get(str(file)) for file in files if not self.has(file)})
        return {file: package for file, package in found.items() if package}

    def part(self, package, file):
        in_sysroot = self.has(file)
        if in_sysroot:
            source, version, architecture = (self.root / "have" / package).read_text().split("\n")[0].split()
        else:
            form = "${source:Package} ${Version} ${Architecture}\n"
            command = ["dpkg-query", "--show", f"--showformat={form}", package]
            source, version, architecture = subprocess.run(command, capture_output=True, text=True).stdout.split()[:3]
        copyright = (self.root if in_sysroot else Path("/")) / "usr/share/doc" / package / "copyright"
        if not copyright.exists():
            raise NoNotice(f"{file} is of {package}, which has no {copyright}")
        text = with_common_licenses(copyright.read_text(), Path("/usr/share/common-licenses"))
        return Part(source, version, f"pkg:deb/debian/{package}@{version}?arch={architecture}", text)


def leading_comment(header):
    return re.match(r"\s*/\*.*?\*/", header.read_text(), flags=re.S)[0] + "\n"


def nanobind_part():
    """nanobind, and robin_map, which is part of its distribution and has its licence in its header."""
    found = importlib.metadata.distribution("nanobind")
    licenses = [file for file in found.files if file.name.startswith("LICENSE")]
    map_header, = [file for file in found.files if file.name == "robin_map.h"]
    text = "\n".join([*(file.locate().read_text() for file in licenses), leading_comment(map_header.locate())])
    return Part("nanobind", found.version, f"pkg:pypi/nanobind@{found.version}", text)


def cuda_part(file):
    """CUDA's runtime, whose archive is linked; its text lies beside the toolkit or in its distributions."""
    root = Path(str(file).partition("/include/")[0])
    texts = [*sorted(root.glob("dist-info/nvidia_cuda_runtime-*/licenses/License.txt")), root / "EULA.txt"]
    for text in texts:
        if text.exists():
            version = re.search(r"cuda-([\d.]+)", str(root.resolve()))
            version = version[1] if version else "unknown"
            return Part("cuda-runtime", version, f"pkg:generic/cuda-runtime@{version}", text.read_text())
    raise NoNotice(f"{file} is of a CUDA toolkit without a licence in {root}: build with -DFERRY_CUDA=OFF")


def files_read(build, debian, *without):
    """The files of others that the compiler read, as ninja listed them, for targets that are packed: those outside this
    repository, and in it those of a sysroot and of .venv."""
    program = re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*)$", (Path(build) / "CMakeCache.txt").read_text(), flags=re.M)[1]
    listed = subprocess.run([program, "-C", str(build), "-t", "deps"], check=True, capture_output=True, text=True)
    found, wanted = set(), False
    for line in listed.stdout.split("\n"):
        if ": #deps" in line:
            wanted = not line.startswith(("tests/", "bench/", *without))
        elif wanted and line.strip():
            found.add(Path(build, line.strip()).resolve())
    ours = {ROOT, Path(build).resolve()}
    return sorted(file for file in found if "site-packages" in file.parts or debian.has(file) or
                  not any(file.is_relative_to(folder) for folder in ours))


def compiled_in(files, debian):
    """The parts that these files are of, by name."""
    parts, seen, packages = {}, set(), debian.packages_of(files)
    for file in files:
        if "nanobind" in file.parts:
            parts["nanobind"] = nanobind_part()
        elif re.search(r"/include/python3\.\d+/", str(file)):
            continue
        elif re.search(r"/cuda[-\d.]*/(targets/[^/]+/)?include/", str(file)):
            parts["cuda-runtime"] = parts.get("cuda-runtime") or cuda_part(file)
        elif package := packages.get(file):
            if package not in seen and not TOOLCHAIN.match(package):
                part = debian.part(package, file)
                parts.setdefault(part.name, part)
            seen.add(package)
        else:
            raise NoNotice(f"{file} is of no Debian package, and of no project that notices.py knows")
    return parts


def bundled(folder, debian, place):
    """The parts whose libraries auditwheel put into an unpacked wheel: it adds a hash to their names."""
    parts = {}
    for library in sorted(folder.glob("*.libs/*")):
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library.name)
        package = debian.packages_of([place / name]).get(place / name)
        if not package:
            raise NoNotice(f"{library.name} is of no Debian package: {place} has no {name} of one")
        part = debian.part(package, place / name)
        parts.setdefault(part.name, part).files.add(str(library.relative_to(folder)))
    return parts


def bill(folder, version, parts):
    """The SBOM as JSON."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    bom = Bom()
    bom.metadata.component = Component(name="ferry-ep", version=version, type=ComponentType.LIBRARY,
                                       purl=PackageURL.from_string(f"pkg:pypi/ferry-ep@{version}"))
    for part in parts:
        sums = [HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256((folder / file).read_bytes()).hexdigest())
                for file in sorted(part.files)]
        notes = [Property(name="ferry:file", value=file) for file in sorted(part.files)]
        notes.append(Property(name="ferry:notice", value=f"parts/{part.name}.txt"))
        notes.append(Property(name="ferry:kind", value="library" if part.files else "compiled in"))
        bom.components.add(Component(name=part.name, version=part.version, type=ComponentType.LIBRARY, hashes=sums,
                                     purl=PackageURL.from_string(part.purl), properties=notes, bom_ref=part.purl))
    bom.register_dependency(bom.metadata.component, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def wheel_tool(*arguments):
    subprocess.run([sys.executable, "-m", "wheel", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def add_to_wheel(wheel, build, sysroot):
    debian = Debian(sysroot)
    place = Path(sysroot, "usr/lib/aarch64-linux-gnu") if sysroot else f"/usr/lib/{platform.machine()}-linux-gnu"
    with tempfile.TemporaryDirectory() as work:
        wheel_tool("unpack", "--dest", work, wheel)
        folder, = Path(work).iterdir()
        info, = folder.glob("*.dist-info")
        parts = compiled_in(files_read(build, debian), debian)
        for name, part in bundled(folder, debian, Path(place).resolve()).items():
            parts[name] = part
        parts = [parts[name] for name in sorted(parts)]
        metadata = (info / "METADATA").read_text()
        head, blank, body = metadata.partition("\n\n")
        for part in parts:
            notice = info / "licenses/parts" / f"{part.name}.txt"
            notice.parent.mkdir(parents=True, exist_ok=True)
            notice.write_text(part.text)
            head += f"\nLicense-File: parts/{part.name}.txt"
        (info / "METADATA").write_text(head + blank + body)
        (info / "sboms").mkdir(exist_ok=True)
        (info / "sboms/ferry_ep.cdx.json").write_text(bill(folder, re.search(r"\nVersion: (.*)", head)[1], parts))
        wheel_tool("pack", "--dest-dir", wheel.parent, folder)


def missing_notices(names, read):
    """What a wheel lacks: `names` are its files, `read` gives the text of one."""
    boms = [name for name in names if name.endswith(".dist-info/sboms/ferry_ep.cdx.json")]
    if not boms:
        return ["no list of parts: sboms/ferry_ep.cdx.json"]
    info = boms[0].split("/")[0]
    parts = {part["name"]: part for part in json.loads(read(boms[0])).get("components", [])}
    known = {note["value"] for part in parts.values() for note in part["properties"] if note["name"] == "ferry:file"}
    found = [f"{name} is of no part" for name in names if ".libs/" in name and name not in known]
    found += [f"{name} is not named as compiled in" for name in sorted(ALWAYS - parts.keys())]
    declared = set(re.findall(r"^License-File: (.*)$", read(f"{info}/METADATA"), flags=re.M))
    for name in sorted(parts):
        notice = f"parts/{name}.txt"
        file = f"{info}/licenses/{notice}"
        if file not in names or len(read(file)) < 200 or notice not in declared:
            found.append(f"{name} has no notice {file}")
    return found


def check(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = missing_notices(archive.namelist(), lambda name: archive.read(name).decode())
    print("\n".join(f"{wheel.name}: {each}" for each in found) or f"{wheel.name}: each part has its notice")
    return 1 if found else 0


def extract(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        bom, = [name for name in names if name.endswith("/sboms/ferry_ep.cdx.json")]
        texts = [(name, archive.read(name).decode()) for name in sorted(names) if "/licenses/parts/" in name]
        wheel.with_suffix(".cdx.json").write_bytes(archive.read(bom))
    notices = "".join(f"{RULE}{Path(name).stem}{RULE}\n{text}" for name, text in texts)
    wheel.with_suffix(".notices.txt").write_text(notices)


def notices_text(build):
    """Debian packages link their libraries, so that they need the notices of what is compiled in only."""
    debian = Debian()
    parts = compiled_in(files_read(build, debian, "python/"), debian)
    return (ROOT / "LICENSE").read_text() + "".join(
        f"{RULE}{name} {parts[name].version}{RULE}\n{parts[name].text}" for name in sorted(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    arguments = {"wheel": ("wheel", "build"), "text": ("build",), "extract": ("wheel",), "check": ("wheel",)}
    for name, words in arguments.items():
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word, type=Path)
        if name == "wheel":
            command.add_argument("--sysroot")
    options = parser.parse_args()
    try:
        if options.command == "check":
            return check(options.wheel)
        if options.command == "extract":
            extract(options.wheel)
        elif options.command == "text":
            print(notices_text(options.build), end="")
        else:
            add_to_wheel(options.wheel, options.build, options.sysroot)
    except NoNotice as error:
        return f"notices.py: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
