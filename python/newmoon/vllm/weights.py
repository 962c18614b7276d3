"""Rule SEAL in vLLM: no external tier while weights may be written, and a new scope afterwards.

vLLM tells a connector nothing of weight updates, sleep or reloads, and every one of them passes
through a method of EngineCore, in the process and on the thread of the scheduler's connector. So
that connector wraps those methods, in its own process only.
"""

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from vllm.logger import init_logger

from newmoon.vllm.awaited import Awaited
from newmoon.vllm.children import sides_of

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore

logger = init_logger("vllm.newmoon")

# Worker methods that vLLM calls by name and that write no weights. Whatever else is called so
# may do: a framework's own method is how most of them bring new weights.
READING_RPCS = frozenset(
    {
        "check_health",
        "compute_weight_checksums",
        "get_kv_cache_spec",
        "get_model_inspection",
        "get_supported_tasks",
        "list_loras",
        "profile",
        "reset_encoder_cache",
        "reset_mm_cache",
        "save_sharded_state",
        "save_tensorized_model",
        "synchronize_device",
    }
)


class WeightWatcher(Protocol):
    reading_rpcs: frozenset[str]
    awaited: Awaited

    def seal(self) -> None:
        """Weights may be written from now on."""

    def unseal(self) -> None:
        """Unless something is awaited."""

    def drop_loaded(self) -> None:
        """Requests that are to be recomputed may wait with loaded KV as well."""

    def fence_after_refused_reset(self) -> None: ...

    def drops(self, request_id: str) -> bool:
        """It holds blocks for a load of ours, and loses them all once a fence has cancelled it."""

    def attach(self, engine: "EngineCore") -> None:
        """Before each request."""

    def set_weight_version(self, weight_version: str) -> None:
        """The caller's label of the weights, behind the update."""


def watchers_of(core: "EngineCore") -> list[WeightWatcher]:
    """Ours among the engine's connectors; none before the scheduler is there."""
    connector = getattr(getattr(core, "scheduler", None), "connector", None)
    return sides_of(connector, "weight_watcher")


def around_adapter(method: Callable[..., Any]) -> Callable[..., Any]:
    """It may fail (there is no such file): the weights are those of before, and no request with an
    adapter uses the external cache."""

    @functools.wraps(method)
    def wrapped(core: "EngineCore", *args: Any, **kwargs: Any) -> Any:
        watchers = watchers_of(core)
        for watcher in watchers:
            watcher.seal()
        try:
            return method(core, *args, **kwargs)
        finally:
            for watcher in watchers:
                watcher.unseal()

    return wrapped


def around_rpc(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(core: "EngineCore", rpc: Any, *args: Any, **kwargs: Any) -> Any:
        watchers = [
            watcher
            for watcher in watchers_of(core)
            if not isinstance(rpc, str) or rpc not in READING_RPCS | watcher.reading_rpcs
        ]
        for watcher in watchers:
            watcher.seal()
        try:
            result = method(core, rpc, *args, **kwargs)
        except Exception:
            after_failure(rpc, watchers)
            raise
        for watcher in watchers:
            watcher.awaited.rpc_succeeded(rpc)
            watcher.unseal()
        return result

    return wrapped


def after_failure(rpc: Any, watchers: list[WeightWatcher]) -> None:
    """The seal has left behind what was there before. If nothing is awaited, what comes now is of
    whatever weights there are now."""
    for watcher in watchers:
        watcher.awaited.rpc_failed(rpc)
        watcher.unseal()
    if any(not watcher.awaited.nothing for watcher in watchers):
        logger.warning(
            "newmoon: %.100s failed; no external cache until weights are updated, or until a reset",
            rpc,
        )


def around_sleep(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(core: "EngineCore", level: int = 1, *args: Any, **kwargs: Any) -> Any:
        watchers = watchers_of(core) if level >= 1 else []  # else: a pause
        for watcher in watchers:
            watcher.awaited.fell_asleep()
            watcher.seal()
        try:
            result = method(core, level, *args, **kwargs)
        except Exception:
            did_not_fall_asleep(core, watchers)
            raise
        if isinstance(result, Future):  # it sleeps once what runs has ended
            result.add_done_callback(
                lambda slept: slept.exception() and did_not_fall_asleep(core, watchers)
            )
        return result

    return wrapped


def did_not_fall_asleep(core: "EngineCore", watchers: list[WeightWatcher]) -> None:
    if core.model_executor.is_sleeping:
        return  # since before
    for watcher in watchers:
        watcher.awaited.sleep_failed()
        watcher.seal()
    if watchers:
        logger.warning("newmoon: sleep failed; no external cache until wake_up(), an update or a reset")


def around_wake_up(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(core: "EngineCore", *args: Any, **kwargs: Any) -> Any:
        watchers = watchers_of(core)
        for watcher in watchers if core.model_executor.is_sleeping else ():  # else: paused at most
            watcher.awaited.fell_asleep()  # it is not awake if this fails
            watcher.seal()
        awake = method(core, *args, **kwargs)
        for watcher in watchers if awake else ():  # else: in part, with more tags to come
            watcher.awaited.woke_up()
            watcher.unseal()
        return awake

    return wrapped


def before_request(method: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's default would fail a request whose load a reset cancelled. Inside MultiConnector
    ours has only a copy of the setting, so the scheduler is told itself."""

    @functools.wraps(method)
    def wrapped(core: "EngineCore", *args: Any, **kwargs: Any) -> Any:
        watchers = watchers_of(core)
        for watcher in watchers:
            watcher.attach(core)
        if watchers:
            watch_local_reset(core)
        if watchers and not core.scheduler.recompute_kv_load_failures:
            core.scheduler.recompute_kv_load_failures = True
            logger.info("newmoon: kv_load_failure_policy is recompute, for every connector")
        return method(core, *args, **kwargs)

    return wrapped


def watch_local_reset(core: "EngineCore") -> None:
    """Once an engine, whose own cache holds nothing before its first request."""
    manager = core.scheduler.kv_cache_manager
    if "reset_prefix_cache" not in vars(manager):
        manager.reset_prefix_cache = around_local_reset(core, manager.reset_prefix_cache)


def around_local_reset(core: "EngineCore", method: Callable[[], bool]) -> Callable[[], bool]:
    """vLLM's own reset fails while anything holds a block, and if requests were to be preempted its
    scheduler then raises, before any connector is reset. A fence asks for no free blocks: what they
    hold is found by nobody. It has failed only if somebody goes on with what it holds.
    """

    @functools.wraps(method)
    def wrapped() -> bool:
        watchers = watchers_of(core)
        for watcher in watchers:
            watcher.drop_loaded()
        if method():
            return True  # which the watchers see before they look anything up
        for watcher in watchers:
            watcher.fence_after_refused_reset()
        return all(
            any(watcher.drops(request_id) for watcher in watchers) for request_id in holders(core)
        )

    return wrapped


def holders(core: "EngineCore") -> list[str]:
    """Requests that hold blocks and are not over."""
    scheduler = core.scheduler
    return [
        request_id
        for request_id, request in scheduler.requests.items()
        if not request.is_finished()
        and any(scheduler.kv_cache_manager.get_block_ids(request_id))
    ]


def around_label(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(core: "EngineCore", weight_version: str) -> Any:
        result = method(core, weight_version)
        for watcher in watchers_of(core):
            watcher.set_weight_version(weight_version)
        return result

    return wrapped


WRAPPED = {
    "add_request": before_request,
    "collective_rpc": around_rpc,
    "set_weight_version": around_label,
    "sleep": around_sleep,
    "wake_up": around_wake_up,
    "add_lora": around_adapter,
    "remove_lora": around_adapter,
}


def watch_engine_core() -> None:
    """Wraps EngineCore's methods, once in a process."""
    from vllm.v1.engine.core import EngineCore

    if hasattr(EngineCore.collective_rpc, "__wrapped__"):
        return
    for name, wrapper in WRAPPED.items():
        setattr(EngineCore, name, wrapper(getattr(EngineCore, name)))
