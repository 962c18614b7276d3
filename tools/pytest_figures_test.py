"""What pytest_figures.py says of results as pytest writes them."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import pytest_figures

RESULTS = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="{errors}" failures="{failures}"
 skipped="{skipped}" tests="3" time="1.0">{cases}</testsuite></testsuites>"""
RECORDED = """<testcase classname="t" name="{name}"><properties>
<property name="max_logprob_difference" value="{value}"/></properties></testcase>"""
SKIPPED = """<testcase classname="" name="python.tests.test_vllm_serve">
<skipped type="pytest.skip" message="collection skipped">could not import 'vllm'</skipped></testcase>"""


class PytestFiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "results.xml"

    def said(self, *cases, errors=0, failures=0, skipped=0):
        """Exit code, output, and what went to standard error."""
        self.path.write_text(RESULTS.format(
            cases="".join(cases), errors=errors, failures=failures, skipped=skipped))
        return self.run_on(self.path)

    def run_on(self, path):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = pytest_figures.main(path)
        return code, out.getvalue().strip(), error.getvalue()

    def test_passed(self):
        code, out, error = self.said()
        self.assertEqual((code, out, error), (0, '"tests": 3, "failed": 0, "skipped": 0', ""))

    def test_failures_and_errors_fail(self):
        code, out, _ = self.said(errors=1, failures=1)
        self.assertEqual((code, out), (1, '"tests": 3, "failed": 2, "skipped": 0'))

    def test_what_is_skipped_is_not_passed_and_is_named(self):
        code, out, error = self.said(SKIPPED, skipped=1)
        self.assertEqual((code, out), (1, '"tests": 3, "failed": 0, "skipped": 1'))
        self.assertIn("test_vllm_serve: could not import 'vllm'", error)

    def test_the_largest_of_each_figure_counts_and_each_is_told(self):
        code, out, error = self.said(
            RECORDED.format(name="a", value="0.0"), RECORDED.format(name="b", value="0.125"),
            RECORDED.format(name="c", value="0.0625"))
        self.assertEqual(code, 0)
        self.assertTrue(out.endswith(', "max_logprob_difference": 0.125'), out)
        self.assertIn("c: max_logprob_difference 0.0625", error)

    def test_no_results(self):
        self.assertEqual(self.run_on(self.path)[0], 2)
        self.path.write_text("<testsuite")
        self.assertEqual(self.run_on(self.path)[0], 2)


if __name__ == "__main__":
    unittest.main()
