#!/usr/bin/env python3
"""sbom.py PROGRAM VERSION [--cuda-libs FOLDER] [--nvcc NVCC] - prints an SPDX 2.3 document of a build as JSON.

Packages: ferry; the Debian packages of every shared library that the program and the libraries beside it need,
directly or not; and where libferry_cuda.so is built, NVIDIA's. The libraries that MPI and GPUs need are optional.
Licences come from /usr/share/doc/PACKAGE/copyright where a program can read it."""
import argparse
import datetime
import email.parser
import glob
import json
import os
import re
import subprocess
import sys
import time
import uuid

PARTS = {"libferry_engine.so": True, "libferry_mpi.so": False, "libferry_cuda.so": False}  # whether all jobs need it

# Debian's names of licences, in SPDX's.
SPDX_NAMES = {"Expat": "MIT", "MIT": "MIT", "BSD-2-clause": "BSD-2-Clause", "BSD-3-clause": "BSD-3-Clause",
              "Apache-2": "Apache-2.0", "Apache-2.0": "Apache-2.0", "Zlib": "Zlib", "zlib": "Zlib",
              "LGPL-2.1+": "LGPL-2.1-or-later", "GPL-2+": "GPL-2.0-or-later", "GPL-3+": "GPL-3.0-or-later",
              "ISC": "ISC", "Artistic or GPL-1+": "Artistic-1.0-Perl OR GPL-1.0-or-later"}
# Read by people: the copyright files of these packages, or source packages, are free text.
KNOWN_LICENSES = {"glibc": "LGPL-2.1-or-later", "openmpi": "BSD-3-Clause", "hwloc": "BSD-3-Clause",
                  "libquadmath0": "LGPL-2.1-or-later"}
GCC_LIBRARIES = "GPL-3.0-or-later WITH GCC-exception-3.1"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def spdx_id(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def needed_names(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--wide", "--dynamic", path))


def resolved_paths(path):
    """Where the loader finds each library that a file needs, directly or not."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", path), re.M))


def owners_of(paths):
    """The Debian package that each library belongs to. Alternatives are links; some packages say /lib for /usr/lib."""
    spellings = {path: (path, os.path.realpath(path), re.sub("^/usr", "", os.path.realpath(path))) for path in paths}
    found = subprocess.run(["dpkg-query", "--search", *sorted({name for names in spellings.values() for name in names})],
                           capture_output=True, text=True, check=False).stdout  # fails where it lacks one spelling
    packages = {line.split(": ")[1]: line.split(": ")[0].split(", ")[0] for line in found.split("\n") if ": " in line}
    return {path: packages[name] for path, names in spellings.items() for name in names if name in packages}


def fields_of(package):
    names = ["Package", "Version", "Architecture", "Maintainer", "source:Package", "Homepage"]
    shown = run("dpkg-query", "--show", "--showformat", "\n".join("${%s}" % name for name in names), package)
    return dict(zip(names, shown.split("\n")))


def license_of(fields):
    """The licence of the larger part of a package, by SPDX's name."""
    source = fields["source:Package"]
    for name in (fields["Package"], source):
        if name in KNOWN_LICENSES:
            return KNOWN_LICENSES[name]
    if re.match(r"gcc-\d", source):
        return GCC_LIBRARIES
    try:
        with open(f"/usr/share/doc/{fields['Package']}/copyright", encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:  # an image without documents
        return "NOASSERTION"
    if not text.startswith("Format:"):
        return "NOASSERTION"
    stanzas = [email.parser.HeaderParser().parsestr(part) for part in re.split(r"\n\s*\n", text)]
    for stanza in stanzas:
        if "*" in (stanza["Files"] or "").split():
            return SPDX_NAMES.get((stanza["License"] or "").split("\n")[0], "NOASSERTION")
    return "NOASSERTION"


def contact(text, default="Organization"):
    """Supplier as SPDX writes it: "Organization: NAME (MAIL)"."""
    match = re.match(r"(.*?)\s*<(.*)>", text)
    name, mail = match.groups() if match else (text, "")
    kind = default if re.search(r"Team|Maintainers|Developers|Group|Debian|Ubuntu|Nvidia", name) else "Person"
    return f"{kind}: {name}" + (f" ({mail})" if mail else "")


def package(name, version, **more):
    return {"SPDXID": spdx_id(name), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", "supplier": "NOASSERTION", **more}


def purl(locator):
    return [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}]


def debian_package(name):
    fields = fields_of(name)
    with open("/etc/os-release", encoding="utf-8") as file:
        system = dict(line.strip().split("=", 1) for line in file if "=" in line)
    distribution = system["ID"].strip('"')
    locator = "pkg:deb/%s/%s@%s?arch=%s&distro=%s-%s" % (
        distribution, fields["Package"], fields["Version"].replace(":", "%3A").replace("+", "%2B"),
        fields["Architecture"], distribution, system.get("VERSION_ID", "").strip('"'))
    more = {"homepage": fields["Homepage"]} if fields["Homepage"] else {}
    return package(fields["Package"], fields["Version"], licenseDeclared=license_of(fields),
                   supplier=contact(fields["Maintainer"]), primaryPackagePurpose="LIBRARY",
                   externalRefs=purl(locator), **more)


def nvidia_packages(folder):
    """What `make cuda-libs` brought from PyPI."""
    for path in sorted(glob.glob(f"{folder}/*.dist-info/METADATA")):
        with open(path, encoding="utf-8") as file:
            data = email.parser.HeaderParser().parse(file)
        yield package(data["Name"], data["Version"], supplier="Organization: NVIDIA", primaryPackagePurpose="LIBRARY",
                      licenseDeclared="LicenseRef-NVIDIA-Proprietary",
                      externalRefs=purl(f"pkg:pypi/{data['Name']}@{data['Version']}"))


class Document:
    def __init__(self, version):
        self.packages = {}
        self.relationships = set()
        self.licenses = []
        self.ferry = package(
            "ferry", version, primaryPackagePurpose="APPLICATION",
            comment="No licence has been chosen for Ferry; that decision is its owner's and is open.")
        self.add(self.ferry)
        self.relate("SPDXRef-DOCUMENT", "DESCRIBES", self.ferry)

    def add(self, added):
        self.packages[added["SPDXID"]] = added
        return added

    def relate(self, one, how, other):
        self.relationships.add((one if isinstance(one, str) else one["SPDXID"], how, other["SPDXID"]))

    def debian(self, name):
        """A Debian package, added where it is new."""
        known = self.packages.get(spdx_id(name.split(":")[0]))
        return known or self.add(debian_package(name))

    def add_libraries(self, path, always):
        """What a part of ferry needs, and what that needs."""
        paths = resolved_paths(path)
        owners = owners_of(paths.values())
        waiting, seen = [(self.ferry, path)], set()
        while waiting:
            user, file = waiting.pop()
            for name in needed_names(file):
                if paths.get(name) not in owners:
                    continue  # the loader, and libraries that no package has
                library = self.debian(owners[paths[name]])
                if user is self.ferry and not always:
                    if (self.ferry["SPDXID"], "DEPENDS_ON", library["SPDXID"]) not in self.relationships:
                        self.relate(library, "OPTIONAL_DEPENDENCY_OF", self.ferry)
                elif user is not library:
                    self.relate(user, "DEPENDS_ON", library)
                if name not in seen:
                    seen.add(name)
                    waiting.append((library, paths[name]))

    def add_nvidia(self, cuda_libs, nvcc):
        for library in nvidia_packages(cuda_libs):
            self.relate(self.add(library), "OPTIONAL_DEPENDENCY_OF", self.ferry)
        if nvcc:
            version = re.search(r"V([0-9.]+)", run(nvcc, "--version")).group(1)
            runtime = package("cuda-cudart-static", version, supplier="Organization: NVIDIA",
                              licenseDeclared="LicenseRef-NVIDIA-Proprietary", primaryPackagePurpose="LIBRARY")
            self.relate(self.ferry, "STATIC_LINK", self.add(runtime))
        self.licenses.append({
            "licenseId": "LicenseRef-NVIDIA-Proprietary", "name": "NVIDIA Software License Agreement",
            "extractedText": "The terms lie in *.dist-info/licenses/License.txt of each package."})

    def as_json(self, date):
        name = f"ferry-{self.ferry['versionInfo']}"
        body = {"packages": [self.packages[key] for key in sorted(self.packages)],
                "relationships": [{"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}
                                  for one, how, other in sorted(self.relationships)]}
        if self.licenses:
            body["hasExtractedLicensingInfos"] = self.licenses
        # The same build has the same namespace.
        identity = uuid.uuid5(uuid.NAMESPACE_URL, name + json.dumps(body, sort_keys=True))
        return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
                "documentNamespace": f"https://spdx.org/spdxdocs/{name.replace('+', '-')}-{identity}",
                "creationInfo": {"created": date.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: ferry-sbom"]},
                **body}


def source_date():
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or time.time()
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("version")
    parser.add_argument("--cuda-libs", default="")
    parser.add_argument("--nvcc", default="")
    options = parser.parse_args()
    document = Document(options.version)
    document.add_libraries(options.program, always=True)
    for name, always in PARTS.items():
        path = os.path.join(os.path.dirname(options.program), name)
        if os.path.exists(path):
            document.add_libraries(path, always)
            if name == "libferry_cuda.so":
                document.add_nvidia(options.cuda_libs, options.nvcc)
    json.dump(document.as_json(source_date()), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
