"""Real vLLM on CPU with stores that outlive it: identities, leases, `newmoon ctl` and `purge`, and
a Mooncake master that dies."""

import json
import tempfile

import pytest

import newmoon
from processes import binary, run_flow, store_server, wait_until

pytest.importorskip("vllm")

pytestmark = pytest.mark.nightly
FOUND = 6 * 128  # whole blocks of the prompt


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(prefix="nm") as made:  # a socket's path has 107 bytes
        yield made


@pytest.fixture(scope="module")
def store(folder):
    with store_server(folder) as (url, _):
        yield url


@pytest.fixture(scope="module")
def named(test_model, store, folder):
    return run_flow("vllm_store_flow.py", test_model, "named", store, base=folder)


@pytest.fixture(scope="module")
def scopes(named, store):
    """As the plain API sees the store once the first engine has ended."""
    with newmoon.open_store(store) as opened:
        return opened.scopes()


@pytest.fixture(scope="module")
def again(test_model, named, scopes, store, folder):
    return run_flow("vllm_store_flow.py", test_model, "again", store, base=folder)


@pytest.fixture(scope="module")
def dummies(test_model, again, store, folder):
    """The steps of two engines of `load_format: dummy`."""
    first = run_flow("vllm_store_flow.py", test_model, "dummy", store, base=folder)
    return first | run_flow("vllm_store_flow.py", test_model, "dummy-again", store, base=folder)


@pytest.fixture(scope="module")
def mooncake(test_model, folder):
    return run_flow("vllm_store_flow.py", test_model, "mooncake", folder, base=folder)


def same(one: dict, other: dict) -> bool:
    return one["tokens"] == other["tokens"] and one["logprobs"] == other["logprobs"]


# --- identity: digest, in a store that `newmoon store-server` shares ---


def test_the_flow_really_changes_weights(named):
    tokens = {tuple(named[name]["tokens"]) for name in ("A cold", "B cold", "C unseen")}
    assert len(tokens) == 3
    assert named["A cold"]["cached"] == named["B cold"]["cached"] == named["C unseen"]["cached"] == 0


def test_going_back_to_earlier_weights_finds_their_blocks(named):
    back = named["A back"]
    assert (back["local"], back["external"]) == (0, FOUND)
    assert same(back, named["A local"])


def test_weights_that_a_worker_writes_past_the_engine_are_noticed(named):
    """In vLLM's own cache there were A's blocks; the digest knows B again."""
    unseen = named["B unseen"]
    assert (unseen["local"], unseen["external"]) == (0, FOUND)
    assert same(unseen, named["B local"])


def test_an_engine_that_starts_later_finds_what_another_one_left(named, again):
    for weights in "AB":
        first = again[f"{weights} first"]
        assert (first["local"], first["external"]) == (0, FOUND)
        assert same(first, named[f"{weights} local"])


def test_no_job_failed(named, again):
    for flow in (named, again):
        for name in ("missing_blocks", "corrupt_blocks", "dropped_saves", "store_errors"):
            assert flow["stats"][name] == 0, name


def test_random_weights_are_not_those_of_the_files_nor_of_each_other(dummies, named):
    for name in ("random", "random, other"):
        assert dummies[name]["cached"] == 0
        assert dummies[name]["logprobs"] != named["A cold"]["logprobs"]


def test_random_weights_that_are_the_same_share(dummies):
    hit = dummies["random, same"]
    assert (hit["local"], hit["external"]) == (0, FOUND)
    assert same(hit, dummies["random, local"])


# --- weights that nobody saw written, a request, and only then a reset ---


@pytest.fixture(scope="module")
def unseen(tiny_model, scopes, store, folder):
    return run_flow("vllm_store_flow.py", tiny_model, "unseen", store, base=folder)


def test_what_ran_before_a_reset_told_of_its_weights_is_not_found_by_the_name_of_those_before(unseen):
    before, cold, back = (unseen[name] for name in ("F by the name of E", "F cold", "E back"))
    assert same(before, cold) and before["cached"] == cold["cached"] == 0
    assert back["cached"] == 0 and back["logprobs"] != cold["logprobs"]


def test_weights_that_a_reset_told_of_have_their_own_name(unseen):
    back = unseen["F back"]
    assert (back["local"], back["external"]) == (0, FOUND)
    assert same(back, unseen["F local"])


# --- leases, ctl, purge ---


def test_ctl_reaches_the_engine(named):
    ctl = named["ctl"]
    assert all(answer["code"] == 0 for answer in ctl.values()), ctl
    assert ctl["ping"]["out"].startswith("alive, floor ")
    stats = json.loads(ctl["stats"]["out"])
    assert stats["loaded_blocks"] == 2 * FOUND // 128 and stats["weight_writes"] > 0
    assert stats["store_blocks"] >= 2 * FOUND // 128
    assert json.loads(ctl["scopes"]["out"])


def test_a_purge_names_the_engine_that_uses_the_scope(named):
    purge = named["purge in use"]
    assert purge["code"] == 1
    assert "engine-named@" in purge["error"] + purge["out"]


def test_an_engine_that_ended_holds_nothing(scopes):
    assert len(scopes) == 3
    for scope in scopes:
        assert scope["holders"] == [] and scope["blocks"] >= FOUND // 128
        assert "namespace=run-7" in scope["description"] and "weights=digest:" in scope["description"]


def test_an_engine_that_is_killed_is_forgotten_when_its_lease_is_over(tiny_model, store, folder):
    run_flow("vllm_store_flow.py", tiny_model, "killed", store, base=folder)
    with newmoon.open_store(store) as opened:

        def holders():
            return [name for scope in opened.scopes() for name in scope["holders"]]

        assert any(name.startswith("engine-killed@") for name in holders()), "it was killed too late"
        wait_until(lambda: not holders(), "the lease was to end", seconds=60 + 30)


# --- ctl fence, on two ranks ---


@pytest.fixture(scope="module")
def fenced(tiny_model, store, folder):
    return run_flow("vllm_store_flow.py", tiny_model, "fenced", store, base=folder)


def test_the_fenced_ranks_had_something_to_find(fenced):
    assert (fenced["A external"]["local"], fenced["A external"]["external"]) == (0, FOUND)
    assert same(fenced["A external"], fenced["A local"])
    for name, ranks in (("B", "01"), ("A back", "01"), ("C", "1"), ("D", "0")):
        said = fenced[f"fence {name}"]
        assert sorted(said) == list(ranks) and all(one["code"] == 0 for one in said.values()), said
        assert fenced[f"{name}, local"]["local"] == FOUND


@pytest.mark.parametrize("weights", ["B", "C", "D"])
def test_a_fence_of_ranks_leaves_nothing_old_to_find_on_any(fenced, weights):
    """B: both were fenced. C and D: one of them, which is enough to be right."""
    step = fenced[weights]
    assert step["cached"] == step["local"] == step["external"] == 0
    assert step["loaded"] == [0, 0]
    assert all(step["logprobs"] != fenced[name]["logprobs"] for name in ("A cold", "A local"))


def test_after_a_fence_of_ranks_requests_are_computed_with_what_the_ranks_have_now(fenced):
    assert fenced["reset"]["answer"] is True and fenced["D cold"]["cached"] == 0
    assert same(fenced["D"], fenced["D cold"])


def test_both_ranks_find_blocks_of_weights_that_are_back_behind_a_fence_of_each(fenced):
    back = fenced["A back"]
    assert (back["local"], back["external"]) == (0, FOUND)
    assert back["loaded"] == [FOUND // 128] * 2
    assert same(back, fenced["A local"])


# --- mooncake:// ---


def test_an_external_hit_on_mooncake_is_as_good_as_a_local_one(mooncake):
    hit = mooncake["A external"]
    assert (hit["local"], hit["external"]) == (0, FOUND)
    assert same(hit, mooncake["A local"])


def test_nothing_stale_on_mooncake(mooncake):
    assert mooncake["reset"]["answer"] is True
    assert mooncake["A after reset"]["cached"] == 0
    assert mooncake["A back"]["cached"] == 0, "without a label a scope is never found again"
    assert same(mooncake["A back"], mooncake["A cold"])


def test_a_trusted_label_finds_its_blocks_again(mooncake):
    for name in ("step-1", "step-2", "step-1 unlabelled", "A"):
        assert mooncake[f"label {name}"]["cached"] == 0, name
    back = mooncake["label step-1 back"]
    assert (back["local"], back["external"]) == (0, FOUND)
    assert same(back, mooncake["label step-1, local"])
    assert back["tokens"] != mooncake["label step-2"]["tokens"]


def test_requests_go_on_without_the_master(mooncake):
    for name in ("A dead", "A dead after reset"):
        assert mooncake[name]["cached"] == 0
        assert same(mooncake[name], mooncake["A cold"])
    assert len(mooncake["A dead, other"]["tokens"]) == 8
    assert mooncake["reset dead"]["answer"] is True, "the fence needs no store"


def test_hits_come_back_with_the_master(mooncake):
    returned = mooncake["A returned"]
    assert returned["external"] == FOUND
    assert same(returned, mooncake["A local"])
