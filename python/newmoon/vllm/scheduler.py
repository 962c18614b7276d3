"""Scheduler role: tells the core of vLLM's requests, and vLLM of the core's decisions."""

import time
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from newmoon._core import ConnectorScheduler, store_is_away
from newmoon.vllm.adapters import Adapters
from newmoon.vllm.awaited import Awaited
from newmoon.vllm.local_cache import LocalCache
from newmoon.vllm.metadata import ReportMetadata, StepMetadata
from newmoon.vllm.metrics import RESET_SECONDS, NewmoonStats
from newmoon.vllm.options import Options, is_text
from newmoon.vllm.rank_weights import watch_rank, weights_of_rank
from newmoon.vllm.request_params import DEFAULT, RequestParams, parse_request_params
from newmoon.vllm.support import Setup

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.newmoon")  # shown as vLLM's own lines are

NO_WEIGHT_VERSION = "default"  # vLLM's, until somebody sets one
MAX_WEIGHT_VERSION_BYTES = 256


class SchedulerSide:
    """Lives in the engine's process, on its loop's thread."""

    def __init__(self, setup: Setup, options: Options):
        self._options = options
        self._core = ConnectorScheduler(
            endpoints=setup.endpoints,
            namespace=options.namespace,
            model=setup.model,
            layout=setup.layout,
            block_size=setup.block_size,
            min_load_tokens=options.min_load_tokens,
            reset_mode=options.reset_mode,
            lookup_timeout_s=options.lookup_timeout_s,
            identity=options.identity,
        )
        tell_of_store(options)
        self._block_size = setup.block_size
        self._endpoints = setup.endpoints
        self._engine: EngineCore | None = None
        self._requests: dict[str, Request] = {}  # those that may use the external tier
        self._params: dict[str, RequestParams] = {}  # by request id
        self._local_tokens: dict[str, int] = {}  # found in vLLM's own cache, by request id
        self._to_compute: list[Request] = []  # they are asked for again, and are to read no cache
        self._manager: KVCacheManager | None = None
        self._local_cache: LocalCache | None = None
        self.reading_rpcs = frozenset(options.reading_rpcs)
        self.awaited = Awaited()
        self._adapters = Adapters()
        self._weight_version: str | None = None  # told since the last seal
        self._stats = NewmoonStats()
        self._told_epoch = self._core.epoch  # as many fences are in the stats taken
        self._told_sealed = False  # in the log, and not yet that a scope is open again

    def bind_kv_cache_manager(self, manager: "KVCacheManager") -> None:
        self._manager, self._local_cache = manager, LocalCache(manager)

    # --- requests ---

    def on_new_request(self, request: "Request") -> None:
        adapter = request.lora_request
        if adapter is None:
            return
        if self._adapters.has_changed(adapter):
            self.seal()
            self.unseal()
        if not self._adapters.may_read(adapter):
            request.skip_reading_prefix_cache = True

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        self._free_reservation(request)
        self._fence_after_local_reset()
        if self._forgot_written_weights():
            return None, False  # what was just found in vLLM's own cache is of the old ones
        if num_computed_tokens > 0 and not self._core.writes_are_known:
            self._to_compute.append(request)  # it may be of old ones too
            return None, False
        if not may_use(request):
            return 0, False
        request_id = request.request_id
        is_new = request_id not in self._requests  # else it waits, for an answer or for room
        self._requests[request_id] = request
        self._local_tokens[request_id] = num_computed_tokens
        may_load = self._params_of(request).may_load(self._weight_version)
        if request.skip_reading_prefix_cache or not may_load:
            return 0, False
        self._identify_if_due()
        self._stats.add("sealed_requests", int(is_new and not self.awaited.nothing))
        tokens = self._core.match(
            request_id, request.block_hashes, request.num_tokens, num_computed_tokens
        )
        return tokens, bool(tokens)

    def _free_reservation(self, request: "Request") -> None:
        """Whoever is asked for holds no blocks. vLLM still keeps free what a load before needed if
        that failed or was dropped: next to it a prompt of more than half of all blocks never fits."""
        if self._engine is not None:
            self._engine.scheduler._inflight_prefills.discard(request)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        request_id = request.request_id
        if request_id not in self._requests:
            return
        # Behind a load vLLM says itself how many tokens the request has.
        found = request.num_computed_tokens or self._local_tokens[request_id]
        (block_ids,) = blocks.get_block_ids()
        if not self._core.update_state_after_alloc(
            request_id, block_ids, found, num_external_tokens
        ):
            raise RuntimeError(f"newmoon: no load for the match of request {request_id}")

    def request_finished(self, request: "Request") -> None:
        if self._requests.pop(request.request_id, None) is not None:
            del self._local_tokens[request.request_id]
            self._params.pop(request.request_id, None)
            self._core.request_finished(request.request_id)

    def _params_of(self, request: "Request") -> RequestParams:
        if request.kv_transfer_params is None:
            return DEFAULT
        known = self._params.get(request.request_id)
        if known is None:
            known = parse_request_params(request.kv_transfer_params)
            self._params[request.request_id] = known
        return known

    # --- a step ---

    def build_connector_meta(self, output: "SchedulerOutput") -> StepMetadata:
        self._fence_after_local_reset()
        self._identify_if_due()
        for request in self._to_compute:
            request.skip_reading_prefix_cache = True  # not sooner: vLLM then takes None for 0
        self._to_compute.clear()
        for new in output.scheduled_new_reqs:
            self._schedule(output, new.req_id, new.block_ids, True, new.num_computed_tokens)
        cached, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
        size, runs_on = self._block_size, False
        for request_id, blocks, num_computed_tokens in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            resumed = request_id in cached.resumed_req_ids
            filled = num_computed_tokens % size
            if not resumed and filled and filled + scheduled[request_id] < size and not blocks:
                # It neither begins nor fills a block, so the core knows all of it already:
                # most steps of most requests.
                runs_on = runs_on or request_id in self._requests
            else:
                self._schedule(output, request_id, blocks, resumed, num_computed_tokens)
        metadata = StepMetadata(self._core.build_connector_meta(runs_on))
        self._tell_if_opened()
        return metadata

    def _schedule(
        self,
        output: "SchedulerOutput",
        request_id: str,
        blocks: tuple[list[int], ...] | None,
        replace: bool,
        num_computed_tokens: int,
    ) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        self._core.schedule(
            request_id,
            request.block_hashes,
            blocks[0] if blocks else [],
            replace,
            num_computed_tokens,
            output.num_scheduled_tokens[request_id],
            self._params_of(request).may_save(self._weight_version),
        )

    def update_connector_output(self, output: "KVConnectorOutput") -> None:
        metadata = output.kv_connector_worker_meta
        reports = metadata.reports if isinstance(metadata, ReportMetadata) else []
        must_fence, cancelled = self._core.update_connector_output(reports)
        for request_id in cancelled:
            self._drop_blocks(self._requests[request_id])
        if must_fence:
            self._forget_weights()

    def _drop_blocks(self, request: "Request") -> None:
        """What it holds is of other weights, all of it: a fence came before it could begin."""
        assert self._manager is not None
        self._manager.free(request)
        request.num_computed_tokens = 0

    def has_pending_push_work(self) -> bool:
        """A pause waits for loads, since they hold blocks; saves hold none."""
        return self._core.has_loads

    # --- fences ---

    def reset_cache(self) -> bool:
        begin = time.perf_counter()
        answer = self._core.reset(timeout_s=self._options.reset_timeout_s)
        self.drop_loaded()
        self._forget_local_cache()
        self._end_failures()
        self._count_reset(answer, time.perf_counter() - begin)
        if not answer["success"]:
            logger.error("newmoon: reset failed: %s", answer["error"])
        elif answer["degraded"]:
            logger.warning("newmoon: reset is degraded: %s", answer["error"])
        else:
            logger.info("newmoon: reset, scope %s, epoch %d", answer["scope"], self._core.epoch)
        return answer["success"]

    def _count_reset(self, answer: dict[str, Any], seconds: float) -> None:
        self._stats.add("resets", 1)
        self._stats.add("degraded_resets", int(answer["degraded"]))
        self._stats.add("failed_resets", int(not answer["success"]))
        self._stats.add(RESET_SECONDS, [seconds])

    def take_stats(self) -> NewmoonStats | None:
        """At the next step: vLLM asks for none while it is idle."""
        stats, self._stats = self._stats, NewmoonStats()
        stats.add("fences", self._core.epoch - self._told_epoch)
        self._told_epoch = self._core.epoch
        return None if stats.is_empty() else stats

    def _fence_after_local_reset(self) -> None:
        """Frameworks that change weights reset vLLM's own cache, and often nothing else."""
        if self._local_cache is None or not self._local_cache.was_reset():
            return
        scope = self._core.fence_only()
        self._end_failures()
        logger.info("newmoon: vLLM's cache was reset; scope %s, epoch %d", scope, self._core.epoch)

    def fence_after_refused_reset(self) -> None:
        """vLLM's own cache keeps what it holds; whoever reset it wanted that to be found no more."""
        scope = self._core.fence_only()
        self._forget_local_cache()
        self._end_failures()
        logger.info("newmoon: vLLM refused a reset; scope %s, epoch %d", scope, self._core.epoch)

    def drops(self, request_id: str) -> bool:
        return self._core.is_loading(request_id)

    def attach(self, engine: "EngineCore") -> None:
        """Before its first request."""
        if self._engine is not engine:
            self._engine = engine
            engine.model_executor.collective_rpc(watch_rank)
            logger.info("newmoon: admin sockets for `newmoon ctl`: %s", ", ".join(self._endpoints))

    def _identify_if_due(self) -> None:
        """Not sooner: a framework may send its weights a tensor a call."""
        if self._options.identity != "digest" or self._engine is None or self.awaited.in_doubt:
            return
        if not self._core.adopt_is_due:
            return
        # No timeout: vLLM would take a late answer for that of the next call.
        ranks = self._engine.model_executor.collective_rpc(weights_of_rank)
        if all(rank is not None for rank in ranks):
            self._core.identify(ranks)

    def set_weight_version(self, weight_version: Any) -> None:
        """vLLM has taken it by now, whatever it is."""
        if self.awaited.in_doubt:
            logger.warning(
                "newmoon: weight_version %.100r names nothing: an update of weights has failed",
                weight_version,
            )
            return
        if not is_text(weight_version, MAX_WEIGHT_VERSION_BYTES):
            logger.warning(
                "newmoon: weight_version %.100r is no printable text of at most %d bytes, so it"
                " names no weights",
                weight_version,
                MAX_WEIGHT_VERSION_BYTES,
            )
            weight_version = NO_WEIGHT_VERSION
        self._forgot_written_weights()  # else that comes later, and the version would go with them
        named = weight_version not in ("", NO_WEIGHT_VERSION)
        self._weight_version = weight_version if named else None
        self._core.set_weight_version(weight_version)

    def seal(self) -> None:
        self._core.seal()
        self.drop_loaded()
        self._forget_weights()
        self._told_sealed = True
        logger.info("newmoon: sealed, weights may change; epoch %d", self._core.epoch)

    def _tell_if_opened(self) -> None:
        if self._told_sealed and self._core.scope is not None:
            self._told_sealed = False
            logger.info("newmoon: a scope is open again, epoch %d", self._core.epoch)

    def unseal(self) -> None:
        """The next step opens a new scope."""
        if self.awaited.nothing:
            self._core.unseal()

    def _end_failures(self) -> None:
        if self.awaited.was_reset():
            self.unseal()

    def drop_loaded(self) -> None:
        """Requests whose load has ended and that have not begun hold KV of the weights of before,
        and make vLLM's own reset fail: it preempts only what runs. Some wait for room still."""
        if self._engine is None:
            return
        scheduler = self._engine.scheduler
        waiting = [
            request.request_id
            for request in scheduler.kv_holding_waiting
            if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        ]
        for request_id in (*scheduler.finished_recving_kv_req_ids, *waiting):
            request = self._requests.get(request_id)
            if request is not None and request.num_computed_tokens > 0:
                self._drop_blocks(request)

    def _forgot_written_weights(self) -> bool:
        if not self._core.weights_were_written():
            return False
        self._forget_weights()
        logger.info("newmoon: weights changed behind the engine; epoch %d", self._core.epoch)
        return True

    def _forget_weights(self) -> None:
        """Behind a seal: what the weights are is unknown until an update names them."""
        self._weight_version = None
        self._forget_local_cache()

    def _forget_local_cache(self) -> None:
        """What vLLM's own cache still holds is as old as what the fence left behind."""
        if self._local_cache is not None:
            self._local_cache.forget()


def tell_of_store(options: Options) -> None:
    """In a rank's log its store says the same, and when it is back."""
    away = store_is_away(options.store, timeout_s=options.store_timeout_s)
    if away is not None:
        logger.warning(
            "newmoon: %s; requests are served without it until it answers ('store' in"
            " kv_connector_extra_config)",
            away,
        )


def may_use(request: "Request") -> bool:
    """An adapter can change behind its name, and a streaming session its tokens."""
    return request.lora_request is None and not request.resumable
