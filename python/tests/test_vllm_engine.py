"""Real vLLM on CPU: one run with the connector, one without, the same requests and weights; and
on several ranks."""

import pytest

pytest.importorskip("vllm")

from mooncake_master import running_store
from processes import run_flow

FOUND = 6 * 128  # whole blocks of the prompt
on_mooncake = pytest.param("mooncake", marks=pytest.mark.nightly)


@pytest.fixture(scope="module", params=["memory", on_mooncake])
def ours(request, test_model) -> dict[str, dict]:
    """Without any entry point: nothing that it does may hang on one."""
    with running_store(request.param) as store:
        return run_flow("vllm_flow.py", test_model, "with", store, VLLM_PLUGINS="")


@pytest.fixture(scope="module")
def plain(test_model) -> dict[str, dict]:
    return run_flow("vllm_flow.py", test_model, "without")


@pytest.fixture(scope="module")
def plain_on_ranks(tiny_model) -> dict[str, dict]:
    return run_flow("vllm_flow.py", tiny_model, "2")


def assert_as_good_as_primed(loaded: dict, primed: dict, record_property) -> None:
    assert primed["cached"] == loaded["cached"] == FOUND
    pairs = zip(loaded["logprobs"], primed["logprobs"], strict=True)
    difference = max(abs(a - b) for a, b in pairs)
    record_property("max_logprob_difference", difference)  # a figure of ./dev test-vllm
    assert loaded["tokens"] == primed["tokens"]
    assert difference == 0.0


def test_external_hits_are_vllms_own_metric(ours):
    assert ours["A cold"]["cached"] == 0
    assert ours["A local"]["local"] == FOUND
    for name in ("A external", "B external"):
        assert ours[name]["local"] == 0, "the other prompts were to push it out"
        assert ours[name]["external"] == FOUND
        assert ours[name]["cached"] == FOUND


@pytest.mark.parametrize("weights", ["A", "B"])
def test_an_external_hit_is_as_good_as_a_local_one(ours, plain, weights, record_property):
    assert_as_good_as_primed(ours[f"{weights} external"], plain[f"{weights} local"], record_property)


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


# One model has 9 heads, the other 2.
@pytest.mark.parametrize(
    ("model", "ranks", "kind"),
    [
        ("test_model", 3, "memory"),
        pytest.param("tiny_model", 2, "memory", marks=pytest.mark.nightly),
        pytest.param("tiny_model", 2, "mooncake", marks=pytest.mark.nightly),
    ],
)
def test_ranks_save_and_load_their_own_part(request, model, ranks, kind, record_property):
    """Three ranks are compared with themselves, two with vLLM's own as well."""
    with running_store(kind) as store:
        told = run_flow("vllm_flow.py", request.getfixturevalue(model), str(ranks), store)
    assert told["A external"]["external"] == FOUND and told["A external"]["local"] == 0
    assert_as_good_as_primed(told["A external"], told["A local"], record_property)
    if ranks == 2:
        plain = request.getfixturevalue("plain_on_ranks")
        assert_as_good_as_primed(told["A external"], plain["A local"], record_property)
    assert told["reset A"]["answer"] is True
    assert told["A after reset"]["cached"] == 0
    assert len(told["ranks"]) == ranks
    for rank in told["ranks"]:
        assert rank["loaded_blocks"] == FOUND // 128
        assert rank["missing_blocks"] == rank["corrupt_blocks"] == rank["store_errors"] == 0
