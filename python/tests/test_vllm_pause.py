"""Real vLLM, paused with its requests kept while one of them is loading, or reset without a pause, and
then other weights; its own cache reset while a save is under way; and few blocks for a load that a
fence cancels."""

import tempfile

import pytest

pytest.importorskip("vllm")

from processes import run_flow, store_server

pytestmark = pytest.mark.nightly
FOUND = 6 * 128  # whole blocks of the prompt


def run_with_server(script, model):
    with tempfile.TemporaryDirectory(prefix="nm") as folder, store_server(folder) as server:
        return run_flow(script, model, *server, base=folder)


@pytest.fixture(scope="module")
def told(tiny_model):
    return run_with_server("vllm_pause_flow.py", tiny_model)


def test_the_pause_waits_for_the_load(told):
    assert told["pause"]["seconds"] > 1
    loaded = [told[f"stats {when}"]["loaded_blocks"] for when in ("before", "paused")]
    assert loaded[1] == loaded[0] + FOUND // 128


def check_what_was_kept(told, before, name):
    kept, cold = told[f"{name} kept"], told[f"{name} cold"]
    assert cold["cached"] == 0
    assert (kept["ended"], kept["tokens"]) == ("length", cold["tokens"])
    assert kept["logprobs"] == cold["logprobs"]
    assert cold["logprobs"] != told[f"{before} cold"]["logprobs"], "the weights were to change"


def test_what_was_loaded_of_the_old_weights_is_not_used(told):
    assert told["reset"]["answer"] is True and told["reset again"]["answer"] is True
    check_what_was_kept(told, "A", "B")


@pytest.mark.parametrize(("before", "name"), ["BC", "CD", "DE"])
def test_a_reset_without_a_pause_drops_what_is_loading(told, before, name):
    """vLLM alone raises, or answers False, since the load holds blocks."""
    assert told[f"reset {name}"]["answer"] is True
    check_what_was_kept(told, before, name)


def test_a_save_under_way_never_makes_vllms_own_reset_fail(told):
    for when in ("before", "after"):
        assert told[f"stats {when} local reset"]["unfinished_saves"] > 0, "the store was to hold it"
    assert told["local reset"]["answer"] is True
    saved = told["saved"]
    assert saved["cached"] == 0 and saved["logprobs"] == told["saving"]["logprobs"]


def test_what_a_cancelled_load_reserved_does_not_keep_its_request_waiting(tiny_model):
    """vLLM keeps free what a load still needs, also next to the next load of the same prompt."""
    told = run_with_server("vllm_crowded_flow.py", tiny_model)
    cold, again = told["cold"], told["loaded again"]
    assert (again["ended"], again["external"]) == ("length", 2 * FOUND)  # before the fence, too
    assert (again["tokens"], again["logprobs"]) == (cold["tokens"], cold["logprobs"])
