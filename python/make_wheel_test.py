"""make_wheel_test.py - what make_wheel.py packs."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import make_wheel


class Wheel(unittest.TestCase):
    def pack(self, *arguments):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = pathlib.Path(folder.name, "program")
        program.write_bytes(b"\x7fELF")
        line = [sys.executable, make_wheel.__file__, "0.1.0+1234567", folder.name, str(program), *arguments]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
        return next(pathlib.Path(folder.name).glob("*.whl"))

    def test_versions_are_those_of_pep_440(self):
        for version, wanted in [("v1.2.3", "1.2.3"), ("v1.2.3-14-g0abc", "1.2.3.post14+g0abc"),
                                ("0.1.0+0012", "0.1.0+g0012"), ("1.0", "1.0"),
                                ("0.1.0+abc-dirty", "0.1.0+gabc.dirty"), ("1.0-dirty", "1.0+dirty")]:
            self.assertEqual(make_wheel.python_version(version), wanted)
        with self.assertRaisesRegex(SystemExit, "'next' is no version"):
            make_wheel.python_version("next")

    def test_the_same_files_give_the_same_bytes(self):
        self.assertEqual(self.pack().read_bytes(), self.pack().read_bytes())

    def test_its_name_has_version_and_glibc(self):
        self.assertRegex(self.pack().name, r"^ferry_llm-0\.1\.0\+g1234567-py3-none-manylinux_2_\d+_\w+\.whl$")

    def test_programs_are_executable_and_the_record_is_whole(self):
        with zipfile.ZipFile(self.pack()) as wheel:
            modes = {member.filename: member.external_attr >> 16 for member in wheel.infolist()}
            self.assertEqual(modes["ferry/bin/program"], 0o100755)
            self.assertEqual(modes["ferry/py.typed"], 0o100644)
            record = wheel.read("ferry_llm-0.1.0+g1234567.dist-info/RECORD").decode().splitlines()
            self.assertEqual([line.split(",")[0] for line in record], wheel.namelist())
            for line in record[:-1]:
                name = line.split(",")[0]
                self.assertEqual(make_wheel.record_line(name, wheel.read(name)), line + "\n")

    def test_a_missing_licence_is_named(self):
        line = [sys.executable, make_wheel.__file__, "1.0", "nowhere", "--licences", "nosuch"]
        said = subprocess.run(line, stderr=subprocess.PIPE).stderr.decode()
        self.assertIn("no licence text /usr/share/doc/nosuch/copyright", said)

    def test_licences_that_a_copyright_file_names_come_along(self):
        if not os.path.exists("/usr/share/doc/libc6/copyright"):
            self.skipTest("no Debian")
        texts = make_wheel.licence_texts(["libc6"])
        self.assertRegex(texts["libc6"].decode(), "GNU")
        self.assertTrue(re.match(rb"\s+GNU LESSER GENERAL PUBLIC LICENSE", texts["LGPL-2.1"]))


if __name__ == "__main__":
    unittest.main()
