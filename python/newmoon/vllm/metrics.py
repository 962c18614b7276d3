"""Our own figures in vLLM's log and on its /metrics, beside its own external_prefix_cache_*."""

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

# Sums over all ranks; a block of two ranks counts twice.
RANK_COUNTERS = {
    "saved_blocks": "Blocks put into the external store.",
    "loaded_blocks": "Blocks loaded from the external store.",
    "missing_blocks": "Blocks that a lookup found and a load did not: evicted meanwhile.",
    "corrupt_blocks": "Blocks whose bytes were not what their key says; computed instead.",
    "dropped_saves": "Saves given up, of a request's blocks in one step each: no room, a fence, or a"
    " store left alone.",
    "dropped_loads": "Loads given up: too many waited, or out of time.",
    "refused_jobs": "Loads and saves of weights of before, refused.",
    "store_errors": "Calls to the store that failed.",
    "calls_without_store": "Calls answered without the external store, which did not answer and is"
    " left alone.",
}
SCHEDULER_COUNTERS = {
    "fences": "Fences: a reset is one, a seal and the scope opened behind it are two.",
    "resets": "Resets of the connector.",
    "degraded_resets": "Resets that a rank did not answer within the deadline.",
    "sealed_requests": "Requests that came while weights were being written, or behind a write that"
    " failed: without the external cache.",
    "failed_resets": "Resets after which something stale may be found (remove_all only).",
}
RESET_SECONDS = "reset_seconds"  # a list, one a reset
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 10)


class NewmoonStats(KVConnectorStats):
    """`data`: what was counted since the last one, without zeros."""

    def reset(self) -> None:
        self.data = {}

    def add(self, name: str, amount: Any) -> None:
        if amount:
            self.data[name] = self.data[name] + amount if name in self.data else amount

    def aggregate(self, other: KVConnectorStats) -> "NewmoonStats":
        for name, amount in other.data.items():
            self.add(name, amount)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the log, whose lines begin anew every few seconds."""
        seconds = self.data.get(RESET_SECONDS)
        counters = {name: n for name, n in self.data.items() if name != RESET_SECONDS}
        return counters | ({"slowest_reset_ms": round(max(seconds) * 1e3, 1)} if seconds else {})

    def is_empty(self) -> bool:
        return not self.data


class CounterDeltas:
    """Counters that only grow, as what they grew by."""

    def __init__(self) -> None:
        self._last: Mapping[str, int] = {}

    def take(self, now: Mapping[str, int]) -> NewmoonStats | None:
        stats = NewmoonStats()
        for name in RANK_COUNTERS:
            stats.add(name, now[name] - self._last.get(name, 0))
        self._last = now
        return None if stats.is_empty() else stats


class NewmoonPromMetrics(KVConnectorPromMetrics):
    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        metrics: dict[str, Any] = {
            name: self._counter_cls(
                name=f"vllm:newmoon_{name}", documentation=text, labelnames=labelnames
            )
            for name, text in (RANK_COUNTERS | SCHEDULER_COUNTERS).items()
        }
        metrics[RESET_SECONDS] = self._histogram_cls(
            name=f"vllm:newmoon_{RESET_SECONDS}",
            documentation="How long a reset of the connector took.",
            buckets=BUCKETS,
            labelnames=labelnames,
        )
        # Made at once, so that a counter of nothing is 0 and not absent.
        self._metrics = {
            (engine, name): metric.labels(*values)
            for engine, values in per_engine_labelvalues.items()
            for name, metric in metrics.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in (transfer_stats_data or {}).items():
            metric = self._metrics[engine_idx, name]
            if name == RESET_SECONDS:
                for seconds in amount:
                    metric.observe(seconds)
            else:
                metric.inc(amount)
