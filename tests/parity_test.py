#!/usr/bin/env python3
"""docs/parity.md names only tests and symbols that exist.

A table with the columns "Newmoon" and "in": each name of the first stands in a file of the
second. With the columns "upstream's code" and "our connector": each test stands in
python/tests/test_upstream_faults.py. Everywhere: each `Suite.Name` with the suite of a C++ test
exists, and each **D1** that is used is explained and the other way round. Python's standard library
only.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST_MACRO = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
SEED_TESTS = 13


def tests_in_tree(root):
    sources = [p for p in root.glob("*/**/*_test.cc") if p.parts[len(root.parts)] != "build"]
    return {f"{suite}.{name}"
            for path in sources for suite, name in TEST_MACRO.findall(path.read_text("utf-8"))}


def quoted(text):
    return re.findall(r"`([^`]+)`", text)


def rows(page):
    """Of each table row: (line number, {column title: cell})."""
    titles = None
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|"):
            titles = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if titles is None:
            titles = cells
        elif not set(line) <= set("|- "):
            yield number, dict(zip(titles, cells))


def wrong_symbols(page, read):
    """`read`: path -> text, or None if there is no such file."""
    for number, row in rows(page):
        if "in" not in row:
            continue
        files = {path: read(path) for path in quoted(row["in"])}
        for path, text in files.items():
            if text is None:
                yield f"line {number}: there is no file {path}"
        text = "\n".join(text for text in files.values() if text)
        for symbol in quoted(row["Newmoon"]):
            for part in symbol.split("::"):
                if not re.search(rf"\b{re.escape(part)}\b", text):
                    yield f"line {number}: no {part} of {symbol} in {row['in']}"


def wrong_tests(page, tests):
    suites = {name.split(".")[0] for name in tests}
    for number, line in enumerate(page.splitlines(), 1):
        for name in quoted(line):
            suite, dot, test = name.partition(".")
            looks_like_one = suite in suites or re.fullmatch(r"[A-Z]\w*(?:Test|Conformance)", suite)
            if dot and looks_like_one and re.fullmatch(r"[A-Z]\w*", test) and name not in tests:
                yield f"line {number}: there is no test {name}"
    for number, row in rows(page):
        for title in ("test", "here"):
            if title in row and (title == "test" or "no." in row) and not quoted(row[title]):
                yield f"line {number}: names no test"


def wrong_python_tests(page, source):
    for number, row in rows(page):
        for name in quoted(row.get("upstream's code", "") + row.get("our connector", "")):
            if f"\ndef {name}(" not in source:
                yield f"line {number}: there is no test {name}"


def wrong_differences(page):
    body, _, explained = page.partition("## Deliberate differences")
    used = set(re.findall(r"\*\*(D\d+)\*\*", body))
    told = set(re.findall(r"^- \*\*(D\d+)\*\*", explained, re.MULTILINE))
    for name in sorted(used ^ told):
        yield f"{name} is not both used and explained"


def read_file(path):
    file = ROOT / path
    return file.read_text("utf-8") if file.is_file() else None


class ParityTest(unittest.TestCase):
    def setUp(self):
        self.page = read_file("docs/parity.md")
        self.tests = tests_in_tree(ROOT)

    def test_symbols_exist(self):
        self.assertEqual(list(wrong_symbols(self.page, read_file)), [])

    def test_tests_exist(self):
        self.assertEqual(list(wrong_tests(self.page, self.tests)), [])

    def test_python_tests_exist(self):
        source = read_file("python/tests/test_upstream_faults.py")
        self.assertEqual(list(wrong_python_tests(self.page, source)), [])

    def test_differences_are_explained(self):
        self.assertEqual(list(wrong_differences(self.page)), [])

    def test_every_test_of_the_seed_has_its_own_under_its_name(self):
        found = [(row["no."], quoted(row["upstream's test"])[0], quoted(row["here"])[0])
                 for _, row in rows(self.page) if "no." in row]
        self.assertEqual([number for number, _, _ in found],
                         [str(i + 1) for i in range(SEED_TESTS)])
        for _, theirs, ours in found:
            self.assertEqual(ours.split(".")[1], theirs)


class PlantedTest(unittest.TestCase):
    """Each check finds what is wrong."""

    TABLE = "| vLLM | Newmoon | in | test |\n|---|---|---|---|\n| x | {} | `a.h` | {} |\n"

    def symbols(self, name):
        page = self.TABLE.format(name, "`ATest.B`")
        return list(wrong_symbols(page, {"a.h": "class Core { void reset(); };"}.get))

    def test_missing_symbol(self):
        self.assertEqual(self.symbols("`Core::reset`"), [])
        self.assertEqual(len(self.symbols("`Core::rese`")), 1)
        self.assertEqual(len(self.symbols("`Gone::reset`")), 1)

    def test_missing_file(self):
        page = self.TABLE.format("`Core`", "`ATest.B`")
        self.assertEqual(len(list(wrong_symbols(page, {}.get))), 2)

    def test_missing_test(self):
        self.assertEqual(list(wrong_tests(self.TABLE.format("`C`", "`ATest.B`"), {"ATest.B"})), [])
        self.assertEqual(len(list(wrong_tests(self.TABLE.format("`C`", "`ATest.B`"), set()))), 1)
        self.assertEqual(len(list(wrong_tests(self.TABLE.format("`C`", "none"), set()))), 1)
        gone = self.TABLE.format("`C`", "`Roles.Gone`")
        self.assertEqual(len(list(wrong_tests(gone, {"Roles.Other"}))), 1)

    def test_missing_python_test(self):
        page = "| upstream's code | our connector |\n|---|---|\n| `test_a` | `test_b` |\n"
        self.assertEqual(len(list(wrong_python_tests(page, "x\ndef test_a():\n"))), 1)

    def test_difference_without_explanation(self):
        page = "**D1** **D2**\n## Deliberate differences\n- **D1** so\n- **D3** so\n"
        self.assertEqual(len(list(wrong_differences(page))), 2)


if __name__ == "__main__":
    unittest.main()
