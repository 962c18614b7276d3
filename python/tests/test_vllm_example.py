"""What examples/vllm_rl_update.py takes for wrong in newmoon's column."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

from vllm_rl_update import wrong_cells

AS_IT_SHOULD_BE = {
    "stale answers, verl": "0 of 5",
    "kept requests, SkyRL": "go on",
    "found again after the update": "19 of 19",
    "found after going back, verl": "1 of 1",
    "stale after going back, verl": "0 of 1",
    "reset, ms": "1.7",
    "reset right behind a request: failed": "0 of 7",
    "pause (abort), ms": "27.5",
    "pause (abort) right behind a request: failed": "0 of 7",
    "pause (keep) right behind a request: failed": "0 of 7",
    "stopped worker: reset": "answers True in 5.0 s",
    "bad frame: its sender": "is answered an error",
    "bad frame: next request": "works in 0.6 s",
    "bad frame: next reset": "answers True",
}
WRONG = {
    "stale answers, verl": "1 of 5",
    "kept requests, SkyRL": "hangs",
    "found again after the update": "18 of 19",
    "found after going back, verl": "0 of 0",
    "stale after going back, verl": "1 of 1",
    "reset right behind a request: failed": "1 of 7",
    "pause (abort) right behind a request: failed": "7 of 7",
    "pause (keep) right behind a request: failed": "1 of 7",
    "stopped worker: reset": "hangs (> 10 s)",
    "bad frame: its sender": "is not answered",
    "bad frame: next request": "fails (EngineDeadError)",
    "bad frame: next reset": "answers False",
}


def test_nothing_is_wrong_with_what_is_as_it_should_be():
    assert wrong_cells(AS_IT_SHOULD_BE, quick=False) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cell_is_named_and_a_missing_one_too(name):
    assert wrong_cells(AS_IT_SHOULD_BE | {name: WRONG[name]}, quick=False) == [f"'{name}': {WRONG[name]}"]
    (missing,) = wrong_cells({k: v for k, v in AS_IT_SHOULD_BE.items() if k != name}, quick=False)
    assert missing.endswith("not seen")


def test_the_quick_flows_keep_no_request():
    kept = "kept requests, SkyRL"
    rows = {name: cell for name, cell in AS_IT_SHOULD_BE.items() if name != kept}
    assert wrong_cells(rows, quick=True) == []
    assert len(wrong_cells(rows | {kept: "hangs"}, quick=True)) == 1
