"""Rule SEAL around EngineCore's methods, without an engine."""

import types
from concurrent.futures import Future

import pytest

pytest.importorskip("vllm")

from newmoon.vllm import weights
from newmoon.vllm.awaited import STARTS, Awaited
from newmoon.vllm.scheduler import SchedulerSide


class Watcher:
    """As SchedulerSide seals, with a log of what happened in which order."""

    def __init__(self, log, reading_rpcs=()):
        self.log, self.reading_rpcs = log, frozenset(reading_rpcs)
        self.awaited, self.sealed = Awaited(), False
        self.attached, self.labels = [], []

    def attach(self, engine):
        self.attached.append(engine)

    def set_weight_version(self, weight_version):
        self.labels.append((weight_version, self.sealed))

    def seal(self):
        self.sealed = True
        self.log.append("seal")

    def unseal(self):
        self.sealed = not self.awaited.nothing
        self.log.append("unseal")

    def drop_loaded(self):
        self.log.append("drop")

    def fence_after_refused_reset(self):
        self.log.append("fence")

    def drops(self, request_id):
        return request_id == "loads"


class Manager:
    """KVCacheManager, which refuses a reset while there are requests."""

    def __init__(self, core):
        self.core = core

    def reset_prefix_cache(self):
        self.core.log.append("reset")
        return not self.core.scheduler.requests

    def get_block_ids(self, request_id):
        return ([] if request_id == "holds none" else [1],)


class Core:
    """EngineCore's methods, wrapped as in production."""

    def __init__(self, watcher, log):
        self.log, self.awake = log, True
        self.broken = {"broken"}
        self.model_executor = types.SimpleNamespace(is_sleeping=False)
        connector = types.SimpleNamespace(weight_watcher=watcher)
        self.scheduler = types.SimpleNamespace(
            connector=connector,
            recompute_kv_load_failures=False,
            requests={},
            kv_cache_manager=Manager(self),
        )

    def add(self, name, finished=False):
        request = types.SimpleNamespace(is_finished=lambda: finished)
        self.scheduler.requests[name] = request
        return self

    def run(self, name, *args, **kwargs):
        self.log.append(name)
        if name in self.broken:
            raise TimeoutError(name)
        return [name]

    def sleep(self, level=1, mode="abort"):
        self.log.append(f"sleep {level}")
        if mode not in ("abort", "wait", "keep"):
            raise ValueError(mode)
        if mode == "wait":  # until what runs has ended, and then perhaps not
            self.falls_asleep = Future()
            return self.falls_asleep
        self.model_executor.is_sleeping = level >= 1
        return None

    def wake_up(self, tags=None):
        self.log.append(f"wake {tags}")
        self.model_executor.is_sleeping = not self.awake
        return self.awake

    add_request = collective_rpc = set_weight_version = add_lora = remove_lora = run


for method, wrapper in weights.WRAPPED.items():
    setattr(Core, method, wrapper(getattr(Core, method)))


@pytest.fixture
def core():
    log = []
    made = Core(Watcher(log, ["my_metrics"]), log)
    made.watcher = made.scheduler.connector.weight_watcher
    return made


def test_an_unknown_rpc_runs_between_seal_and_unseal(core):
    assert core.collective_rpc("update_weights_from_ipc", 3.0, (), {}) == ["update_weights_from_ipc"]
    assert core.log == ["seal", "update_weights_from_ipc", "unseal"]
    assert not core.watcher.sealed


def test_a_function_may_write_weights_too(core):
    core.collective_rpc(lambda worker: None)
    assert core.log[0] == "seal"


@pytest.mark.parametrize("rpc", ["list_loras", "my_metrics"])
def test_what_only_reads_seals_nothing(core, rpc):
    core.collective_rpc(rpc)
    assert core.log == [rpc]


def test_an_update_in_parts_opens_with_its_finish(core):
    core.collective_rpc("start_weight_update")
    core.collective_rpc("update_weights")
    assert core.watcher.sealed
    core.collective_rpc("finish_weight_update")
    assert not core.watcher.sealed


def test_what_failed_stays_sealed_until_something_succeeds(core, monkeypatch):
    told = []
    monkeypatch.setattr(weights.logger, "warning", lambda text, *args: told.append(text % args))
    with pytest.raises(TimeoutError):
        core.collective_rpc("broken")
    assert core.watcher.sealed
    assert len(told) == 1 and "broken failed; no external cache" in told[0]
    core.collective_rpc("reload_weights")
    assert not core.watcher.sealed


@pytest.mark.parametrize("start", STARTS)
def test_a_start_that_fails_opens_at_once(core, start):
    core.broken = {start}
    with pytest.raises(TimeoutError):
        core.collective_rpc(start)
    assert core.log == ["seal", start, "unseal"] and not core.watcher.sealed
    assert core.watcher.awaited.in_doubt, "its scope is unique"
    core.collective_rpc("my_write")
    assert core.watcher.awaited.in_doubt, "an update may have begun on some ranks"
    core.broken = set()
    core.collective_rpc(start)
    core.collective_rpc("finish_weight_update")
    assert not core.watcher.awaited.in_doubt


def test_a_start_that_fails_ends_nothing_that_was_begun(core):
    core.collective_rpc("start_weight_update")
    core.broken = {"start_weight_update"}
    with pytest.raises(TimeoutError):
        core.collective_rpc("start_weight_update")
    assert core.watcher.sealed
    core.collective_rpc("finish_weight_update")
    assert not core.watcher.sealed


@pytest.mark.parametrize("rpc", ["update_weights", "finish_weight_update"])
def test_an_update_that_fails_waits_for_a_whole_one(core, rpc):
    """Until then an engine for transfers may write in the background."""
    core.collective_rpc("start_weight_update")
    core.broken = {rpc}
    with pytest.raises(TimeoutError):
        core.collective_rpc(rpc)
    core.collective_rpc("my_write")
    assert core.watcher.sealed and core.watcher.awaited.in_doubt
    core.broken = set()
    for part in ("start_weight_update", "update_weights"):
        core.collective_rpc(part)
        assert core.watcher.sealed
    core.collective_rpc("finish_weight_update")
    assert not core.watcher.sealed and not core.watcher.awaited.in_doubt


def test_an_update_without_a_start_is_an_rpc_like_others(core):
    """A framework's own method may be called so."""
    core.broken = {"update_weights"}
    with pytest.raises(TimeoutError):
        core.collective_rpc("update_weights")
    assert core.watcher.sealed
    core.broken = set()
    core.collective_rpc("update_weights")
    assert not core.watcher.sealed and not core.watcher.awaited.in_doubt


@pytest.mark.parametrize("failed", ["my_write", "update_weights"])
def test_a_reset_ends_a_failure_and_leaves_the_doubt(core, failed):
    core.collective_rpc("start_weight_update")
    assert not core.watcher.awaited.was_reset(), "the update goes on"
    core.broken = {failed}
    with pytest.raises(TimeoutError):
        core.collective_rpc(failed)
    assert core.watcher.awaited.was_reset()
    assert core.watcher.awaited.in_doubt
    assert core.watcher.awaited.nothing == (failed == "update_weights"), "its session is over"


def test_sleep_is_sealed_until_all_is_awake(core):
    core.sleep(2)
    core.collective_rpc("reload_weights")
    assert core.watcher.sealed
    core.awake = False
    core.wake_up(["weights"])
    assert core.watcher.sealed
    core.awake = True
    core.wake_up(["kv_cache"])
    assert not core.watcher.sealed


def test_a_sleep_that_writes_nothing_seals_nothing(core):
    core.sleep(0)
    core.sleep(level=0, mode="keep")
    core.wake_up(["scheduling"])
    assert core.log == ["sleep 0", "sleep 0", "wake ['scheduling']", "unseal"]


def test_a_sleep_that_ended_before_the_weights_did_opens_as_it_wakes_up(core):
    core.sleep()
    core.model_executor.is_sleeping = False
    core.wake_up()
    assert not core.watcher.sealed


def test_after_a_sleep_that_failed_a_reset_opens(core):
    with pytest.raises(ValueError):
        core.sleep(1, mode="no such mode")
    assert core.watcher.awaited.was_reset()
    assert core.watcher.awaited.nothing
    assert core.watcher.awaited.in_doubt, "some ranks may sleep"


def test_after_a_sleep_that_failed_a_wake_up_opens(core):
    with pytest.raises(ValueError):
        core.sleep(1, mode="no such mode")
    assert core.watcher.sealed
    core.wake_up()
    assert not core.watcher.sealed
    assert core.watcher.awaited.in_doubt, "vLLM wakes up no rank unless all fell asleep"


def test_after_a_sleep_that_failed_an_update_opens_and_weights_are_known(core):
    with pytest.raises(ValueError):
        core.sleep(1, mode="no such mode")
    core.collective_rpc("update_weights_from_ipc")
    assert not core.watcher.sealed and not core.watcher.awaited.in_doubt


def test_a_sleep_that_fails_behind_a_wake_up_seals(core):
    core.sleep(1, mode="wait")
    core.wake_up()
    assert not core.watcher.sealed
    core.falls_asleep.set_exception(TimeoutError("a rank"))
    assert core.watcher.sealed


def test_a_sleep_that_fails_once_requests_have_ended_has_failed(core):
    core.sleep(1, mode="wait")
    core.falls_asleep.set_exception(TimeoutError("a rank"))
    assert core.watcher.awaited.was_reset()
    assert core.watcher.awaited.nothing
    core.sleep(1, mode="wait")
    core.falls_asleep.set_result(None)
    assert not core.watcher.awaited.was_reset()
    assert not core.watcher.awaited.nothing


def test_a_second_sleep_that_fails_does_not_end_the_first(core):
    core.sleep()
    with pytest.raises(ValueError):
        core.sleep(1, mode="no such mode")
    assert not core.watcher.awaited.was_reset()
    core.wake_up()
    assert not core.watcher.sealed


@pytest.fixture
def reset_local(core):
    core.add_request("request")
    core.add_request("wraps once")
    core.log.clear()
    return core.scheduler.kv_cache_manager.reset_prefix_cache


def test_a_local_reset_drops_what_was_loaded_first(core, reset_local):
    assert reset_local() is True
    assert core.log == ["drop", "reset"]


@pytest.mark.parametrize(
    ("name", "finished", "answer"),
    [("loads", False, True), ("holds none", False, True), ("aborted", True, True), ("runs", False, False)],
)
def test_a_local_reset_that_vllm_refuses_is_a_fence(core, reset_local, name, finished, answer):
    core.add(name, finished)
    assert reset_local() is answer, "does anybody go on with what it holds?"
    assert core.log == ["drop", "reset", "fence"]


def test_a_request_that_goes_on_makes_the_reset_fail_whoever_else_loads(core, reset_local):
    core.add("loads").add("runs")
    assert reset_local() is False


def test_the_scheduler_opens_at_the_reset_behind_a_failure():
    log, side = [], object.__new__(SchedulerSide)
    side._core = types.SimpleNamespace(
        unseal=lambda: log.append("unseal"), fence_only=lambda: log.append("fence"), epoch=1
    )
    side._local_cache, side.awaited = None, Awaited()
    side.awaited.rpc_failed("my_write")
    side.unseal()
    assert log == []
    side.fence_after_refused_reset()
    assert log == ["fence", "unseal"]
    side.fence_after_refused_reset()
    assert log == ["fence", "unseal", "fence"]


@pytest.mark.parametrize("method", ["add_lora", "remove_lora"])
def test_adapters_seal(core, method):
    getattr(core, method)("adapter")
    assert core.log == ["seal", "adapter", "unseal"]


def test_an_adapter_that_cannot_be_loaded_opens_again_and_ends_no_other_failure(core):
    with pytest.raises(TimeoutError):
        core.add_lora("broken")
    assert not core.watcher.sealed
    with pytest.raises(TimeoutError):
        core.collective_rpc("broken")
    core.add_lora("adapter")
    assert core.watcher.sealed


def test_a_connector_inside_multiconnector_is_found(core):
    inner = core.scheduler.connector
    core.scheduler.connector = types.SimpleNamespace(_connectors=[object(), inner])
    assert weights.watchers_of(core) == [core.watcher]


def test_a_failed_load_never_fails_a_request_whatever_multiconnector_was_told(core):
    core.scheduler.connector = types.SimpleNamespace(_connectors=[core.scheduler.connector])
    core.add_request("request")
    assert core.log == ["request"] and core.scheduler.recompute_kv_load_failures
    core.scheduler.connector = object()
    core.scheduler.recompute_kv_load_failures = False
    core.add_request("request")
    assert not core.scheduler.recompute_kv_load_failures, "without ours it is left alone"


def test_the_engine_is_known_before_its_first_request(core):
    core.add_request("request")
    assert core.watcher.attached == [core]


def test_a_label_is_told_behind_its_update(core):
    core.collective_rpc("reload_weights")
    core.set_weight_version("step-1")
    assert core.watcher.labels == [("step-1", False)]


def test_an_engine_without_our_connector_is_left_alone(core):
    core.scheduler = types.SimpleNamespace(connector=object())
    core.collective_rpc("anything")
    assert core.log == ["anything"]
    del core.scheduler  # while the engine is being made
    core.collective_rpc("anything")
    assert core.log == ["anything"] * 2


def test_vllms_methods_are_wrapped_once():
    from vllm.v1.engine.core import EngineCore

    weights.watch_engine_core()
    wrapped = {name: getattr(EngineCore, name) for name in weights.WRAPPED}
    assert all(hasattr(method, "__wrapped__") for method in wrapped.values())
    weights.watch_engine_core()
    assert wrapped == {name: getattr(EngineCore, name) for name in weights.WRAPPED}
