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

from rl_engine import FOUND, OTHER_LINEAR, TOLERANCE, WEIGHTS
from rl_flows import FLOWS

RIGHT_WITHOUT_US = {"SkyRL: fully async, cache_salt"}  # in what is guaranteed: new requests
# Rows that are no flow: the file of their test, and whether something is not guaranteed.
ELSEWHERE = {
    ("verl", "several replicas on one store"): ("test_vllm_replicas.py", False),
    ("SkyRL", "LoRA in place, no pause"): ("test_vllm_adapters.py", True),
}
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
def test_what_is_guaranteed_is_as_with_a_fresh_engine(seen, flow, record_property):
    for name, difference in differences(seen["fenced"], flow).items():
        assert difference <= TOLERANCE, name
        record_property("max_logprob_difference", difference)


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


def test_the_weights_are_as_many_as_fresh_engines_were_started_for(seen):
    weights = {one["weights"] for named in seen["fenced"].values() for one in named.values()}
    assert weights == {*WEIGHTS, OTHER_LINEAR}


def test_the_page_has_these_rows():
    page = (HERE.parents[1] / "docs" / "guarantees.md").read_text()
    (part,) = re.findall(r"^## Rows$.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|(.*)\|$", part, re.MULTILINE)[1:]
    told = {(framework, mode): "NOT guaranteed" in rest for framework, mode, rest in rows}
    flows = {(flow.framework, flow.mode): bool(flow.not_guaranteed) for flow in FLOWS}
    assert told == flows | {row: part_only for row, (_, part_only) in ELSEWHERE.items()}
    for framework, mode, rest in rows:
        if (framework, mode) in ELSEWHERE:
            file, _ = ELSEWHERE[framework, mode]
            assert f"`{file}`" in rest and (HERE / file).exists()
