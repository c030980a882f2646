#!/bin/sh
# sbom_test.sh FERRY - `make sbom`, of the build that FERRY is in.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=../cli/lib.sh
. "$tests_folder/cli/lib.sh"
sbom=$tests_folder/../packaging/sbom.py
export SOURCE_DATE_EPOCH=86400

it "lists every library that the program and its engine need, with version, licence and supplier"
if ! command -v dpkg-query >/dev/null; then
    skip "this system has no dpkg"
    exit 0
fi
run_program python3 "$sbom" "$ferry" 1.2+3
exits 0
cp "$stdout" document
cat >check.py <<'EOF'
import json
import sys

document = json.load(open("document"))
packages = {package["SPDXID"]: package for package in document["packages"]}
by_name = {package["name"]: package for package in document["packages"]}
needed = {one["relatedSpdxElement"] for one in document["relationships"]
          if (one["spdxElementId"], one["relationshipType"]) == ("SPDXRef-ferry", "DEPENDS_ON")}
for start in sys.argv[1:]:
    found = [name for name in by_name if name.startswith(start)]
    assert len(found) == 1, f"{start}: {found}"
    package = by_name[found[0]]
    assert package["SPDXID"] in needed, f"{found} is no dependency"
    assert package["licenseDeclared"] != "NOASSERTION", f"{found} has no licence"
    assert package["supplier"] != "NOASSERTION" and package["versionInfo"], f"{package}"
    assert package["externalRefs"][0]["referenceLocator"].startswith("pkg:deb/"), f"{package}"
for one in document["relationships"]:
    assert one["relatedSpdxElement"] in packages, f"{one}"
ferry = by_name["ferry"]
assert (ferry["versionInfo"], ferry["licenseDeclared"]) == ("1.2+3", "NOASSERTION"), f"{ferry}"
assert "open" in ferry["comment"]
assert document["creationInfo"]["created"] == "1970-01-02T00:00:00Z"
EOF
run_program python3 check.py libc6 libcjson1 libyaml-0 libdeflate0 libssl3 zlib1g libopenblas0
exits 0

it "calls what MPI alone needs optional"
if [ -e "$(dirname "$ferry")/libferry_mpi.so" ]; then
    grep -q OPTIONAL_DEPENDENCY_OF document || is_wrong "nothing is optional"
else
    skip "this build has no MPI"
fi

it "is the same for the same build"
run_program python3 "$sbom" "$ferry" 1.2+3
cmp -s "$stdout" document || is_wrong "two documents differ"
