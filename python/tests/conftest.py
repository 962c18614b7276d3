"""Models for the tests with an engine."""

import os
import pathlib
import subprocess
import sys

import pytest


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
