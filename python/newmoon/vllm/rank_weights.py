"""Rule BIND in a rank: counts what writes weights there, whoever calls it.

EngineCore's methods are watched in its own process (weights.py). A worker extension, or a framework
that talks to the workers itself, passes by them; but what it calls in the end is a method of the
worker, of its model runner or of the model. Those are wrapped here, in the rank's process, at the
scheduler's first request. The scheduler compares the count before it looks into any cache.

The functions that the scheduler has called in every rank raise nothing: that would end the engine.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.logger import init_logger

from newmoon.vllm.children import sides_of
from newmoon.vllm.digest import UnknownWeights, digest_of
from newmoon.vllm.options import shown

if TYPE_CHECKING:
    from newmoon.vllm.worker import WorkerSide

logger = init_logger("vllm.newmoon")

WORKER_WRITES = (
    "add_lora",
    "finish_weight_update",
    "load_model",
    "reload_weights",
    "remove_lora",
    "reset_weights",
    "sleep",
    "start_draft_weight_update",
    "start_weight_update",
    "update_weights",
    "wake_up",
)
RUNNER_WRITES = ("add_lora", "load_model", "reload_weights", "remove_lora")
MODEL_WRITES = ("load_weights",)


def check_reading_rpcs(names: tuple[str, ...]) -> None:
    """Raises ValueError for what cannot be a method of the user's own that writes nothing."""
    for name in names:
        if name in (*WORKER_WRITES, *RUNNER_WRITES, "apply_model"):
            raise ValueError(f"newmoon: 'reading_rpcs' names {name!r}, which may write weights")
        if not name.isidentifier():
            raise ValueError(f"newmoon: 'reading_rpcs' takes names of methods, not {shown(name)}")


def our_workers() -> "list[WorkerSide]":
    """Of this process, more than one inside MultiConnector."""
    if not has_kv_transfer_group():
        return []
    return sides_of(get_kv_transfer_group(), "worker_side")


def counted(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for worker in our_workers():
            worker.note_weight_write()
        try:
            return method(*args, **kwargs)
        finally:  # what failed may have written some
            for worker in our_workers():
                worker.note_weight_write()

    wrapped.newmoon_counts = True  # type: ignore[attr-defined]
    return wrapped


def count_writes_of(kind: type, names: tuple[str, ...]) -> None:
    """Once a class."""
    for name in names:
        method = getattr(kind, name, None)
        if method is not None and not hasattr(method, "newmoon_counts"):
            setattr(kind, name, counted(method))


def watch_rank(worker: Any) -> None:
    """Called in every rank. `worker`: vLLM's, or its wrapper."""
    try:
        worker = getattr(worker, "worker", worker)
        count_writes_of(type(worker), WORKER_WRITES)
        count_writes_of(type(worker.model_runner), RUNNER_WRITES)
        count_writes_of(type(worker.get_model()), MODEL_WRITES)
    except Exception:
        logger.exception("newmoon: weights that a worker changes on its own will not be noticed")


def weights_of_rank(worker: Any) -> tuple[int, bytes] | None:
    """Called in every rank: its count of weight writes, and the digest of its tensors. None: it
    cannot be had, the log says why."""
    try:
        (side, *_) = our_workers()
        return side.weight_writes, digest_of(worker.get_model())
    except UnknownWeights as unknown:
        logger.warning("newmoon: no digest of the weights, so their scope is unique: %s", unknown)
    except Exception:
        logger.exception("newmoon: no digest of the weights, so their scope is unique")
    return None
