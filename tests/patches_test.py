#!/usr/bin/env python3
"""Every planted bug still applies: what ./dev planted and ./dev sim-bugs will patch and build."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLANTED = sorted((ROOT / "tests/planted").glob("*.patch"))
SIMULATED = sorted((ROOT / "sim/bugs").glob("*.patch"))
PRODUCTION = ("base", "hash", "store", "admin", "connector", "engine", "model", "python/native")
IN_PYTHON = "python/newmoon/"


def in_the_connector(path):
    """Seen by tests of the vLLM connector, the others by the demo."""
    return path.stem.startswith("vllm-")


def fields_of(path):
    """Those that its verb needs."""
    if path in SIMULATED:
        return ["Rule"]
    return ["Rule", "Tests"] if in_the_connector(path) else ["Rule", "Faults", "Arguments"]


def patches():
    return [(path, fields_of(path)) for path in SIMULATED + PLANTED]


class PatchesTest(unittest.TestCase):
    def test_the_page_names_them(self):
        page = (ROOT / "docs" / "verification.md").read_text("utf-8")
        for title, kind in (("on the real model", False), ("in the vLLM connector", True)):
            with self.subTest(title):
                table = page.split(f"## Planted bugs {title}")[1].split("\n## ")[0]
                named = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
                there = [path.stem for path in PLANTED if in_the_connector(path) == kind]
                self.assertTrue(named)
                self.assertEqual(sorted(named), there)

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
                    is_cc = file.endswith(".cc") and not file.endswith("_test.cc")
                    is_py = file.startswith(IN_PYTHON) and file.endswith(".py")
                    in_cc = file.startswith(tuple(f"{layer}/" for layer in PRODUCTION))
                    self.assertTrue(is_py or (is_cc and in_cc), file)

    def test_each_says_what_it_breaks_and_how_it_is_run(self):
        for path, fields in patches():
            header = path.read_text().split("\n--- ", 1)[0]
            for field in fields:
                with self.subTest(patch=path.name, field=field):
                    self.assertRegex(header, re.compile(rf"^{field}: \S", re.MULTILINE))


if __name__ == "__main__":
    unittest.main()
