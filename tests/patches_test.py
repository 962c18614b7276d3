#!/usr/bin/env python3
"""Every planted bug still applies: what ./dev planted and ./dev sim-bugs will patch and build."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Folder -> the fields that its verb needs.
FOLDERS = {"tests/planted": ("Rule", "Faults", "Arguments"), "sim/bugs": ("Rule",)}
PRODUCTION = ("base", "hash", "store", "admin", "connector", "engine", "model")


def patches():
    return [
        (path, fields)
        for folder, fields in FOLDERS.items()
        for path in sorted((ROOT / folder).glob("*.patch"))
    ]


class PatchesTest(unittest.TestCase):
    def test_the_page_names_those_of_the_demo(self):
        page = (ROOT / "docs" / "verification.md").read_text("utf-8")
        table = page.split("## Planted bugs on the real model")[1].split("\n## ")[0]
        named = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
        self.assertTrue(named)
        self.assertEqual(
            sorted(named), sorted(path.stem for path in (ROOT / "tests/planted").glob("*.patch"))
        )

    def test_each_applies_as_it_is(self):
        for path, _ in patches():
            with self.subTest(path.name):
                run = subprocess.run(
                    ["patch", "--dry-run", "--force", "-p1", "--fuzz=0", "-d", str(ROOT)],
                    input=path.read_text(), capture_output=True, text=True, timeout=60, check=False,
                )  # fmt: skip
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_each_changes_production_code_alone(self):
        for path, _ in patches():
            with self.subTest(path.name):
                files = re.findall(r"^\+\+\+ b/(\S+)", path.read_text(), re.MULTILINE)
                self.assertTrue(files)
                for file in files:
                    self.assertIn(file.split("/")[0], PRODUCTION)
                    self.assertTrue(file.endswith(".cc") and not file.endswith("_test.cc"), file)

    def test_each_says_what_it_breaks_and_how_it_is_run(self):
        for path, fields in patches():
            header = path.read_text().split("\n--- ", 1)[0]
            for field in fields:
                with self.subTest(patch=path.name, field=field):
                    self.assertRegex(header, re.compile(rf"^{field}: \S", re.MULTILINE))


if __name__ == "__main__":
    unittest.main()
