"""Real vLLM on CPU: one run with the connector, one without, the same requests and weights; and
one with tensor parallelism."""

import pytest

pytest.importorskip("vllm")

from processes import run_flow

FOUND = 6 * 128  # whole blocks of the prompt


@pytest.fixture(scope="module")
def ours(test_model) -> dict[str, dict]:
    return run_flow("vllm_flow.py", test_model, "with")


@pytest.fixture(scope="module")
def plain(test_model) -> dict[str, dict]:
    return run_flow("vllm_flow.py", test_model, "without")


def test_external_hits_are_vllms_own_metric(ours):
    assert ours["A cold"]["cached"] == 0
    assert ours["A local"]["local"] == FOUND
    for name in ("A external", "B external"):
        assert ours[name]["local"] == 0, "the other prompts were to push it out"
        assert ours[name]["external"] == FOUND
        assert ours[name]["cached"] == FOUND


@pytest.mark.parametrize("weights", ["A", "B"])
def test_an_external_hit_is_as_good_as_a_local_one(ours, plain, weights):
    loaded, primed = ours[f"{weights} external"], plain[f"{weights} local"]
    assert primed["cached"] == loaded["cached"] == FOUND
    difference = max(
        abs(a - b) for a, b in zip(loaded["logprobs"], primed["logprobs"], strict=True)
    )
    print(f"weights {weights}: max logprob difference {difference}")
    assert loaded["tokens"] == primed["tokens"]
    assert difference == 0.0


def test_the_flow_really_changes_weights(plain):
    tokens = {tuple(plain[name]["tokens"]) for name in ("A cold", "B cold", "C cold", "D cold")}
    assert len(tokens) == 4


def test_a_reset_of_the_connector_leaves_nothing(ours):
    assert ours["reset A"]["answer"] is True
    assert ours["A after reset"]["cached"] == 0
    assert ours["A after reset"]["external"] == 0


@pytest.mark.parametrize("weights", ["B", "C", "D"])
def test_nothing_stale_after_a_weight_update(ours, plain, weights):
    """B: reset_connector=True. C: a local reset alone, as many frameworks do it. D: no reset at
    all, through collective_rpc."""
    if weights != "D":
        assert ours[f"reset {weights}"]["answer"] is True
    after = ours[f"{weights} cold"]
    assert after["cached"] == 0
    assert after["tokens"] == plain[f"{weights} cold"]["tokens"]
    assert after["logprobs"] == plain[f"{weights} cold"]["logprobs"]


def test_the_cache_opens_again_after_a_weight_update(ours):
    assert ours["stats D"]["saved_blocks"] == ours["stats C"]["saved_blocks"] + FOUND // 128


def test_no_job_failed(ours):
    stats = ours["stats D"]
    assert stats["saved_blocks"] > 0 and stats["loaded_blocks"] == 2 * FOUND // 128
    for name in ("missing_blocks", "corrupt_blocks", "dropped_saves", "dropped_loads",
                 "store_errors"):
        assert stats[name] == 0, name


def test_ranks_save_and_load_their_own_part(test_model):
    told = run_flow("vllm_flow.py", test_model, "ranks")
    assert told["A external"]["external"] == FOUND and told["A external"]["local"] == 0
    assert told["A external"]["logprobs"] == told["A local"]["logprobs"]
    assert told["reset A"]["answer"] is True
    assert told["A after reset"]["cached"] == 0
    assert len(told["ranks"]) == 3
    for rank in told["ranks"]:
        assert rank["loaded_blocks"] == FOUND // 128
        assert rank["missing_blocks"] == rank["corrupt_blocks"] == rank["store_errors"] == 0
