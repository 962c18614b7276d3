"""Replicas on one Mooncake master in real vLLM: weights roll over them, as verl does it, while both
answer requests. The row "several replicas on one store" of docs/guarantees.md."""

import pathlib
import sys
import tempfile

import pytest

from processes import run_flow

pytest.importorskip("vllm")

pytestmark = pytest.mark.nightly
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from rl_engine import FIRST, FOUND, TOLERANCE, WEIGHTS

fenced = pytest.mark.parametrize("case", ["digest", "unique"])


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    with tempfile.TemporaryDirectory(prefix="nm") as base:  # a socket's path has 107 bytes
        return run_flow(
            "replicas_run.py", str(folder / "model"), str(folder), base=base, path=(EXAMPLES,)
        )


@fenced
def test_no_answer_differs_at_any_moment(told, case, record_property):
    differences = [one["difference"] for one in told[case]["seen"]]
    assert max(differences) <= TOLERANCE
    record_property("max_logprob_difference", max(differences))
    record_property("answers_of_replicas", len(differences))


@fenced
def test_both_replicas_answered_with_both_weights_and_across_updates(told, case):
    seen = {(one["replica"], one["weights"]) for one in told[case]["seen"]}
    assert seen == {(replica, weights) for replica in (0, 1) for weights in (FIRST, WEIGHTS[0])}
    assert told[case]["aborted"] > 0


def test_the_second_to_have_weights_finds_the_blocks_of_the_first(told):
    assert [probe["late"] for probe in told["digest"]["probes"]] == [FOUND, FOUND]
    assert told["digest"]["loaded"][1] >= 2 * FOUND // 128


@fenced
def test_one_that_has_other_weights_still_does_not(told, case):
    assert [probe["early"] for probe in told[case]["probes"]] == [0, 0]


def test_unique_weights_are_shared_with_nobody(told):
    assert [probe["late"] for probe in told["unique"]["probes"]] == [0, 0]


def test_without_the_fence_it_would_be_stale(told):
    """So the comparison can fail."""
    assert max(one["difference"] for one in told["unfenced"]["seen"]) > TOLERANCE
