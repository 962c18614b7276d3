"""NewmoonConnector: vLLM's KVConnectorBase_V1, handed on to the role at hand."""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from newmoon.vllm.metadata import ReportMetadata, StepMetadata
from newmoon.vllm.metrics import NewmoonPromMetrics, NewmoonStats
from newmoon.vllm.options import parse_options
from newmoon.vllm.rank_weights import check_reading_rpcs
from newmoon.vllm.scheduler import SchedulerSide
from newmoon.vllm.support import check_role, check_store, check_version, inspect
from newmoon.vllm.weights import WeightWatcher, watch_engine_core
from newmoon.vllm.worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class NewmoonConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads are asynchronous, saves are staged; a failed load recomputes, never fails a request.

    Raises RuntimeError for a vLLM of another version, ValueError for a configuration that is not
    supported; both say why in one line.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self,
        vllm_config: "VllmConfig",
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig",
    ):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = self._kv_transfer_config
        options = parse_options(transfer.kv_connector_extra_config)
        check_version(options.any_vllm_version)
        check_role(transfer.kv_role)
        check_store(options)
        check_reading_rpcs(options.reading_rpcs)
        setup = inspect(vllm_config, kv_cache_config, options)
        # vLLM's default would fail a request whose load a reset cancelled. The scheduler reads
        # it after it has made its connector; inside MultiConnector see watch_engine_core().
        transfer.kv_load_failure_policy = "recompute"
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(setup, options)
            watch_engine_core()
        else:
            self._worker = WorkerSide(setup, options, vllm_config.parallel_config.rank)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is not saved is computed

    @property
    def weight_watcher(self) -> WeightWatcher | None:
        return self._scheduler

    @property
    def worker_side(self) -> WorkerSide | None:
        return self._worker

    # --- scheduler ---

    def bind_kv_cache_manager(self, kv_cache_manager: "KVCacheManager") -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._as_scheduler.bind_kv_cache_manager(kv_cache_manager)

    def on_new_request(self, request: "Request") -> None:
        self._as_scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._as_scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        self._as_scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        return self._as_scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        self._as_scheduler.update_connector_output(connector_output)

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._as_scheduler.request_finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def has_pending_push_work(self) -> bool:
        return self._as_scheduler.has_pending_push_work()

    def reset_cache(self) -> bool | None:
        """The worker role has nothing to say: workers are reset through the admin channel."""
        return None if self._scheduler is None else self._scheduler.reset_cache()

    # --- worker ---

    def register_kv_caches(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        self._as_worker.register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMetadata)
        self._as_worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        self._as_worker.start_load_kv()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous: no forward pass waits for one."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: "torch.Tensor",
        attn_metadata: "AttentionMetadata",
        **kwargs: Any,
    ) -> None:
        """Blocks are saved whole, after the forward pass."""

    def wait_for_save(self) -> None:
        self._as_worker.wait_for_save()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        loads, failed = self._as_worker.take_finished()
        return KVConnectorTransferResults(finished_recving=loads, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._as_worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> ReportMetadata | None:
        return self._as_worker.take_report()

    # --- both ---

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return (self._scheduler or self._as_worker).take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return NewmoonStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> NewmoonPromMetrics:
        return NewmoonPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @property
    def _as_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "called in the worker role"
        return self._scheduler

    @property
    def _as_worker(self) -> WorkerSide:
        assert self._worker is not None, "called in the scheduler role"
        return self._worker
