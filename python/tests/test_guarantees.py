"""docs/guarantees.md, a test for each row: the frameworks' calls around real changes of weights."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

pytestmark = pytest.mark.nightly
HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

from rl_flows import FLOWS, FOUND, TOLERANCE

RIGHT_WITHOUT_US = {"SkyRL: fully async, cache_salt"}  # in what is guaranteed: new requests
by_flow = pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What came out: of "fenced" and of "unfenced", by flow."""
    paths = [str(HERE), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(HERE / "guarantees_run.py"), str(tmp_path_factory.mktemp("model"))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert done.returncode == 0 and told, done.stdout[-4000:] + done.stderr[-8000:]
    return json.loads(told[0].removeprefix("SEEN "))


def differences(observations, flow):
    return {
        name: one["difference"]
        for name, one in observations[flow.name].items()
        if name not in flow.not_guaranteed
    }


@by_flow
def test_what_is_guaranteed_is_as_with_a_fresh_engine(seen, flow):
    for name, difference in differences(seen["fenced"], flow).items():
        assert difference <= TOLERANCE, name


@by_flow
def test_what_is_not_guaranteed_is_not(seen, flow):
    """Else the page says less than it could."""
    for name in flow.not_guaranteed:
        if name in seen["fenced"][flow.name]:
            assert seen["fenced"][flow.name][name]["difference"] > TOLERANCE, name


@by_flow
def test_the_external_cache_is_open_again(seen, flow):
    again = seen["fenced"][flow.name]["again"]
    assert again["cached"] == again["external"] == FOUND


@by_flow
def test_without_the_fence_it_would_be_stale(seen, flow):
    """So the comparison can fail."""
    found = differences(seen["unfenced"], flow)
    stale = [name for name, difference in found.items() if difference > TOLERANCE]
    assert bool(stale) == (bool(found) and flow.name not in RIGHT_WITHOUT_US)


def test_a_salt_does_not_cover_requests_that_go_on(seen):
    running = seen["unfenced"]["SkyRL: non-colocated, cache_salt"]["running"]
    assert running["difference"] > TOLERANCE


def test_the_page_has_these_rows():
    page = (HERE.parents[1] / "docs" / "guarantees.md").read_text()
    (part,) = re.findall(r"^## Rows$.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|(.*)\|$", part, re.MULTILINE)
    told = {(framework, mode): "NOT guaranteed" in rest for framework, mode, rest in rows[1:]}
    assert told == {(flow.framework, flow.mode): bool(flow.not_guaranteed) for flow in FLOWS}
