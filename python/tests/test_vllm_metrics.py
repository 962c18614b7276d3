"""Our figures as vLLM carries them, and what a request may ask for; no engine runs."""

import logging

import pytest

pytest.importorskip("vllm")

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from newmoon.vllm import NewmoonConnector
from newmoon.vllm.metrics import RANK_COUNTERS, CounterDeltas, NewmoonStats
from newmoon.vllm.request_params import DEFAULT, RequestParams, parse_request_params


def counters(**some):
    return dict.fromkeys(RANK_COUNTERS, 0) | some


def test_ranks_tell_what_was_added():
    deltas = CounterDeltas()
    assert deltas.take(counters()) is None
    assert deltas.take(counters(saved_blocks=3)).data == {"saved_blocks": 3}
    assert deltas.take(counters(saved_blocks=3)) is None
    assert deltas.take(counters(saved_blocks=5, store_errors=1)).data == {
        "saved_blocks": 2,
        "store_errors": 1,
    }


def test_ranks_and_scheduler_are_added_up():
    one = NewmoonStats(data={"saved_blocks": 3})
    two = NewmoonStats(data={"saved_blocks": 4, "reset_seconds": [0.001]})
    sum_ = one.aggregate(two).aggregate(NewmoonStats(data={"reset_seconds": [0.2], "resets": 2}))
    assert sum_.data == {"saved_blocks": 7, "reset_seconds": [0.001, 0.2], "resets": 2}
    assert two.data["reset_seconds"] == [0.001]
    assert sum_.reduce() == {"saved_blocks": 7, "resets": 2, "slowest_reset_ms": 200.0}
    assert NewmoonStats().is_empty() and not sum_.is_empty()


def test_prometheus_has_them_by_engine():
    registry = CollectorRegistry()

    def made_by(kind):
        return lambda **arguments: kind(registry=registry, **arguments)

    kinds = {kind: made_by(kind) for kind in (Counter, Gauge, Histogram)}
    config = type("Config", (), {"kv_transfer_config": None})()
    metrics = NewmoonConnector.build_prom_metrics(
        config, kinds, ["model_name", "engine"], {0: ["m", "0"], 1: ["m", "1"]}
    )
    data = NewmoonConnector.build_kv_connector_stats(
        {"fences": 2, "calls_without_store": 7, "reset_seconds": [0.003]}
    ).data
    metrics.observe(data, 1)
    metrics.observe({}, 0)

    def value(name, engine):
        return registry.get_sample_value(name, {"model_name": "m", "engine": engine})

    assert value("vllm:newmoon_fences_total", "1") == 2
    assert value("vllm:newmoon_fences_total", "0") == 0
    assert value("vllm:newmoon_reset_seconds_count", "1") == 1
    assert value("vllm:newmoon_calls_without_store_total", "1") == 7
    assert value("vllm:newmoon_corrupt_blocks_total", "1") == 0


@pytest.mark.parametrize(
    ("asked", "understood"),
    [
        (None, DEFAULT),
        ({"do_remote_prefill": True}, DEFAULT),
        ({"newmoon": {}}, DEFAULT),
        ({"newmoon": {"load": False}}, RequestParams(load=False)),
        ({"newmoon": {"save": False, "load": False}}, RequestParams(load=False, save=False)),
        ({"newmoon": {"weight_version": "step-42"}}, RequestParams(weight_version="step-42")),
        ({"newmoon": {"weight_version": None}}, DEFAULT),
    ],
)
def test_a_request_may_go_without(asked, understood, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    assert parse_request_params(asked) == understood
    assert not caplog.records


def test_however_deep_it_is_nested(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    asked = {}
    for _ in range(100_000):
        asked = {"load": asked}
    assert parse_request_params({"newmoon": asked}) == RequestParams(load=False, save=False)
    assert "{'load': {'load'" in caplog.text
    while asked:  # else the interpreter's stack ends with it
        asked = asked["load"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("off", "'off'"),
        (["load"], "['load']"),
        ({"load": 0}, "{'load': 0}"),
        ({"lode": False, "save": True}, "{'lode': False}"),
        ({"weight_version": 42, "load": True}, "{'weight_version': 42}"),
        ({7: True}, "{7: True}"),
    ],
)
def test_a_request_that_is_not_understood_goes_without_and_the_log_names_why(
    asked, named, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    assert parse_request_params({"newmoon": asked}) == RequestParams(load=False, save=False)
    (record,) = caplog.records
    assert named in record.getMessage() and '"save": BOOL' in record.getMessage()


@pytest.mark.parametrize(
    ("meant_for", "told", "may"),
    [
        (None, None, True),
        (None, "step-42", True),
        ("step-42", "step-42", True),
        ("step-42", "step-41", False),
        ("step-42", None, False),
        ("", None, False),
    ],
)
def test_weights_of_another_name_or_none_are_not_those_that_were_meant(meant_for, told, may):
    params = RequestParams(weight_version=meant_for)
    assert (params.may_load(told), params.may_save(told)) == (may, may)
    assert not RequestParams(load=False, weight_version=meant_for).may_load(told)
    assert not RequestParams(save=False, weight_version=meant_for).may_save(told)
