"""Models for the tests with an engine, and the logs of the flows when one fails."""

import os
import pathlib
import subprocess
import sys

import pytest

from processes import flow_logs

SHOWN_LOG = 20_000  # characters of a flow's log, the last ones


@pytest.fixture(scope="module", autouse=True)
def only_flow_logs_of_this_module():
    flow_logs.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections += [(f"log of {name}", log[-SHOWN_LOG:]) for name, log in flow_logs]
    return report


@pytest.fixture(scope="session")
def test_model() -> str:
    model = os.environ.get("NEWMOON_TEST_MODEL")
    if not model:
        pytest.fail("NEWMOON_TEST_MODEL is not set; run ./dev test-vllm")
    return model


@pytest.fixture(scope="session")
def tiny_model(test_model, tmp_path_factory) -> str:
    """Made in a process of its own, so that this one needs no torch."""
    out = tmp_path_factory.mktemp("tiny")
    script = pathlib.Path(__file__).with_name("tiny_model.py")
    subprocess.run([sys.executable, script, out, test_model], check=True, capture_output=True)
    return str(out)
