"""What `./dev bench-vllm` runs inside vLLM's processes, which import this module.

Both connectors are vLLM's own class and ours with clocks around the scheduler's methods, and with
samples of a lookup taken where a lookup belongs: within schedule(), while the step before runs.
EngineCore.bench() is called as a utility between steps; WorkerExtension in the rank's process.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import (
    MooncakeStoreConnector,
)
from vllm.v1.engine.core import EngineCore

from newmoon.vllm import NewmoonConnector

ADMITTING = ("get_num_new_matched_tokens", "update_state_after_alloc")
FILL_CHUNK = 4096  # blocks a message
READING_RPCS = ["bench_put", "bench_run_step", "bench_saved"]


def hash_of(seed: int, number: int) -> bytes:
    return hashlib.sha256(f"{seed} {number}".encode()).digest()


class Timed:
    """Before a connector's class: how long each step was in it, on the scheduler's side."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.jobs: deque[Callable[[], float]] = deque()  # samples to be taken, one a step
        self.samples_ms: list[float] = []
        self.steps: list[tuple[int, float]] = []  # requests scheduled, milliseconds
        self.spent_ms = self.admitting_ms = 0.0

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        if self.jobs:
            self.samples_ms.append(self.jobs.popleft()())
        begin = time.perf_counter()
        metadata = super().build_connector_meta(scheduler_output)
        self.spent_ms += (time.perf_counter() - begin) * 1000
        self.steps.append((len(scheduler_output.num_scheduled_tokens), self.spent_ms))
        self.spent_ms = 0.0
        return metadata


def timed(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return getattr(super(Timed, self), name)(*args, **kwargs)
        finally:
            took_ms = (time.perf_counter() - begin) * 1000
            self.spent_ms += took_ms
            if name in ADMITTING:
                self.admitting_ms += took_ms

    return method


for _name in (*ADMITTING, "update_connector_output"):
    setattr(Timed, _name, timed(_name))


class InTree(Timed, MooncakeStoreConnector):
    def lookup_ms(self, hashes: list[bytes], tokens: int, expected: int) -> float:
        """What its scheduler does for a request: client, server, batch_is_exist."""
        begin = time.perf_counter()
        found = self.connector_scheduler.client.lookup("bench", tokens, hashes)
        took_ms = (time.perf_counter() - begin) * 1000
        assert found.hit_length == expected, f"in-tree: hit {found.hit_length}, not {expected}"
        return took_ms

    def fill(self, core: EngineCore, seed: int, count: int) -> None:
        """Keys of its own form, with values of a block's size."""
        core.collective_rpc("bench_put", args=(seed, count))


class Ours(Timed, NewmoonConnector):
    def lookup_ms(self, hashes: list[bytes], tokens: int, expected: int) -> float:
        core = self._scheduler._core
        begin = time.perf_counter()
        while (found := core.match("bench", hashes, tokens, 0)) is None:
            time.sleep(0.0001)  # the engine would take a step
        took_ms = (time.perf_counter() - begin) * 1000
        core.request_finished("bench")
        assert found == expected, f"newmoon: hit {found}, not {expected}"
        return took_ms

    def fill(self, core: EngineCore, seed: int, count: int) -> None:
        """Saved as blocks of a request that computed them."""
        manager = self._scheduler._manager
        ids = range(1, manager.block_pool.num_gpu_blocks)
        size = core.vllm_config.cache_config.block_size
        goal = core.collective_rpc("bench_saved")[0][0]
        for begin in range(0, count, FILL_CHUNK):
            hashes = [hash_of(seed, n) for n in range(begin, min(begin + FILL_CHUNK, count))]
            blocks = [ids[n % len(ids)] for n in range(len(hashes))]
            name = f"fill {seed} {begin}"
            tokens = len(hashes) * size
            deadline = time.monotonic() + 60
            while self._scheduler._core.scope is None and time.monotonic() < deadline:
                self._scheduler._core.match(name, hashes, 1, 0)  # opens it, if the rank answers
            self._scheduler._core.schedule(name, hashes, blocks, True, 0, tokens, True)
            step = self._scheduler._core.build_connector_meta()
            goal += len(hashes)
            reports = core.collective_rpc("bench_run_step", args=(step,))[0]
            while core.collective_rpc("bench_saved")[0][0] < goal:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{goal} blocks were not saved within a minute")
                time.sleep(0.005)
                reports += core.collective_rpc("bench_run_step", args=(None,))[0]
            self._scheduler._core.update_connector_output(reports)
            self._scheduler._core.request_finished(name)


def bench(core: EngineCore, what: str, args: list[Any]) -> Any:
    """A utility of the engine's: runs on its loop's thread, between steps."""
    return getattr(Bench(core), what)(*args)


class Bench:
    def __init__(self, core: EngineCore):
        self.core, self.connector = core, core.scheduler.connector

    def fill(self, seed: int, count: int) -> None:
        self.connector.fill(self.core, seed, count)

    def sample_lookups(self, seed: int, count: int, hit: bool, times: int) -> None:
        """Taken with the next steps; results() has them."""
        size = self.core.vllm_config.cache_config.block_size
        hashes = [hash_of(seed if hit else -seed, n) for n in range(count)]
        tokens, expected = count * size + 1, count * size if hit else 0
        self.connector.samples_ms = []
        self.connector.jobs.extend(
            [lambda: self.connector.lookup_ms(hashes, tokens, expected)] * times
        )

    def results(self) -> tuple[list[float], int]:
        return self.connector.samples_ms, len(self.connector.jobs)

    def take_steps(self) -> list[tuple[int, float]]:
        steps, self.connector.steps = self.connector.steps, []
        return steps

    def take_admitting_ms(self) -> float:
        took_ms, self.connector.admitting_ms = self.connector.admitting_ms, 0.0
        return took_ms

    def reset_ms(self) -> tuple[float, bool]:
        begin = time.perf_counter()
        done = self.connector.reset_cache()
        return (time.perf_counter() - begin) * 1000, bool(done)

    def block_bytes(self) -> int:
        (group,) = self.core.scheduler.kv_cache_config.kv_cache_groups
        return group.kv_cache_spec.page_size_bytes * len(group.layer_names)

    def forget_local_cache(self) -> None:
        """vLLM's own map, in place: as if other requests had pushed everything out. No reset, so
        no fence."""
        pool = self.core.scheduler.kv_cache_manager.block_pool
        pool.cached_block_hash_to_block._cache.clear()
        pool.cached_block_hashes_by_block.clear()


EngineCore.bench = bench


class WorkerExtension:
    def bench_put(self, seed: int, count: int) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import PoolKey

        worker = get_kv_transfer_group().connector_worker
        ((prefix,),) = worker._lookup_key_prefixes
        value = bytes(block_bytes(self))
        for begin in range(0, count, FILL_CHUNK):
            numbers = range(begin, min(begin + FILL_CHUNK, count))
            keys = [PoolKey.build_key_string(prefix, hash_of(seed, n).hex()) for n in numbers]
            put(worker.store, keys, value)

    def bench_run_step(self, step: bytes | None) -> list[bytes]:
        """A step's message as a forward pass would handle it; its reports."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        core = get_kv_transfer_group()._worker._core
        if step is not None:
            core.bind(step)
            core.start_load_kv()
            core.wait_for_save()
        report = core.take_finished()[0]
        return [] if report is None else [report]

    def bench_saved(self) -> tuple[int, int]:
        """Blocks that reached the store (ours; the in-tree connector counts none), and saves of
        which is known that they have not."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector = get_kv_transfer_group()
        if isinstance(connector, InTree):
            return 0, connector.connector_worker.kv_send_thread.request_queue.unfinished_tasks
        return connector._worker._core.stats()["saved_blocks"], 0


def put(store: Any, keys: list[str], value: bytes) -> None:
    """Mooncake gives up a batch that it could not end in time, as on a busy machine."""
    for _ in range(5):
        code = store.put_batch(keys, [value] * len(keys))
        if code == 0:
            return
    raise RuntimeError(f"Mooncake's put_batch answers {code}")


def block_bytes(worker: Any) -> int:
    (tensor, *others) = worker.model_runner.kv_caches
    return tensor[0].numel() * tensor.element_size() * (1 + len(others))
