#!/usr/bin/env python3
"""make_wheel.py VERSION OUT FILE... --licences PACKAGE... - packs the module with the program and its libraries, FILE...

The wheel's tag says the glibc of this machine: the oldest that these files run with. The same files give the same
bytes: members have the time SOURCE_DATE_EPOCH. PACKAGE is a Debian package whose copyright file goes into it."""
import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import sys
import time
import zipfile

NAME = "ferry_llm"  # of the wheel: PyPI has another project "ferry"
MODULE = pathlib.Path(__file__).resolve().parent / "ferry"
DOCUMENTS = pathlib.Path("/usr/share/doc")
COMMON_LICENCE = re.compile(r"/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]")
METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: Converts LLM checkpoints between formats and parallel layouts, and verifies them
Requires-Python: >=3.8
Description-Content-Type: text/markdown
{licences}
"""
WHEEL = """Wheel-Version: 1.0
Generator: ferry make_wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
ferry = ferry.__main__:main
"""


def python_version(version):
    """VERSION of the Makefile by PEP 440: v0.1.0-5-gabc is 0.1.0.post5+gabc, and 0.1.0+abc is 0.1.0+gabc."""
    found = re.fullmatch(r"v?(\d+(?:\.\d+)*)(?:-(\d+)-g(\w+)|\+(\w+))?(-dirty)?", version)
    if not found:
        sys.exit(f"make_wheel.py: {version!r} is no version: vX.Y.Z, vX.Y.Z-N-gCOMMIT or X.Y.Z+COMMIT")
    number, commits, since, commit, dirty = found.groups()
    local = ([f"g{since or commit}"] if since or commit else []) + (["dirty"] if dirty else [])
    return number + (f".post{commits}" if commits else "") + ("+" + ".".join(local) if local else "")


def machine_tag():
    name, glibc = os.confstr("CS_GNU_LIBC_VERSION").split()
    assert name == "glibc", name
    return f"py3-none-manylinux_{glibc.replace('.', '_')}_{platform.machine()}"


def licence_texts(packages):
    """Copyright files by name, and the licences that they refer to."""
    texts = {package: (DOCUMENTS / package / "copyright").read_bytes() for package in packages}
    paths = {path for text in texts.values() for path in COMMON_LICENCE.findall(text.decode())}
    return {**texts, **{os.path.basename(path): pathlib.Path(path).read_bytes() for path in sorted(paths)}}


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def members(version, tag, files, licences):
    """(name, bytes, whether it is executable) of each member, RECORD last."""
    info = f"{NAME}-{version}.dist-info"
    found = [(f"ferry/{path.name}", path.read_bytes(), False)
             for path in sorted(MODULE.iterdir()) if path.suffix == ".py" or path.name == "py.typed"]
    found += [(f"ferry/bin/{os.path.basename(path)}", pathlib.Path(path).read_bytes(), True) for path in files]
    found += [(f"{info}/licenses/{name}", text, False) for name, text in licences.items()]
    metadata = METADATA.format(name=NAME.replace("_", "-"), version=version,
                               licences="".join(f"License-File: {name}\n" for name in licences))
    metadata += (MODULE.parent / "README.md").read_text(encoding="utf-8")
    for name, text in [("METADATA", metadata), ("WHEEL", WHEEL.format(tag=tag)), ("entry_points.txt", ENTRY_POINTS)]:
        found.append((f"{info}/{name}", text.encode(), False))
    record = "".join(record_line(name, data) for name, data, _ in found) + f"{info}/RECORD,,\n"
    return [*found, (f"{info}/RECORD", record.encode(), False)]


def write_wheel(path, contents):
    seconds = max(int(os.environ.get("SOURCE_DATE_EPOCH") or 0), 315532800)  # 1980, the first year of zip
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data, is_executable in contents:
            member = zipfile.ZipInfo(name, time.gmtime(seconds)[:6])
            member.external_attr = (0o100755 if is_executable else 0o100644) << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("out")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--licences", nargs="*", default=[], metavar="PACKAGE")
    arguments = parser.parse_args()
    version, tag = python_version(arguments.version), machine_tag()
    path = os.path.join(arguments.out, f"{NAME}-{version}-{tag}.whl")
    try:
        licences = licence_texts(arguments.licences)
    except FileNotFoundError as error:
        sys.exit(f"make_wheel.py: no licence text {error.filename}; on another system than Debian: WHEEL_LICENCES=")
    write_wheel(path, members(version, tag, arguments.files, licences))
    print(f"{path}: {os.path.getsize(path) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
