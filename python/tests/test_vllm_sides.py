"""Both sides of the connector with the core between them, on a store in memory; no engine runs.

What vLLM's scheduler and its model runner would call is called here. "Computing" fills a block's KV
with a byte that stands for the weights.
"""

import hashlib
import tempfile
import time
import types

import pytest

pytest.importorskip("vllm")

import torch
from vllm.v1.core.block_pool import BlockPool

from mooncake_master import running_store
from newmoon.vllm import NewmoonConnector, scheduler
from newmoon.vllm.options import Options
from newmoon.vllm.scheduler import SchedulerSide
from newmoon.vllm.support import Setup
from newmoon.vllm.worker import WorkerSide

BLOCK, BLOCK_BYTES, BLOCKS = 16, 64, 12
PATIENCE_S = 20.0


def eventually(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not (held := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return held


def request(name, prompt=1, blocks=2, params=None):
    """The last token of a prompt is computed in any case, so there is one behind its blocks."""
    return types.SimpleNamespace(
        request_id=name,
        block_hashes=[hashlib.sha256(bytes([prompt, n])).digest() for n in range(blocks)],
        num_tokens=blocks * BLOCK + 1,
        num_computed_tokens=0,
        lora_request=None,
        resumable=False,
        skip_reading_prefix_cache=False,
        kv_transfer_params=params,
    )


def connector_of(scheduler=None, worker=None):
    connector = object.__new__(NewmoonConnector)
    connector._scheduler, connector._worker = scheduler, worker
    return connector


def output_of(new=(), cached=()):
    """Of (request's name, its blocks or the new ones of it, computed tokens, scheduled tokens)."""
    space = types.SimpleNamespace
    return space(
        scheduled_new_reqs=[
            space(req_id=name, block_ids=(blocks,), num_computed_tokens=computed)
            for name, blocks, computed, _ in new
        ],
        scheduled_cached_reqs=space(
            req_ids=[name for name, *_ in cached],
            new_block_ids=[(blocks,) if blocks else None for _, blocks, *_ in cached],
            num_computed_tokens=[computed for _, _, computed, _ in cached],
            resumed_req_ids=set(),
        ),
        num_scheduled_tokens={name: tokens for name, _, _, tokens in (*new, *cached)},
    )


class Sides:
    def __init__(self, folder, **options):
        setup = Setup(
            model="model",
            layout="layout",
            block_size=BLOCK,
            block_count=BLOCKS,
            rank_count=1,
            endpoints=[f"ipc://{folder}/sockets/rank0.sock"],
            engine_id="engine",
        )
        sizes = {"store_bytes": 1 << 20, "staging_bytes": 1 << 16}
        chosen = Options(**{"lookup_timeout_s": PATIENCE_S} | sizes | options)
        self.kv = torch.zeros(BLOCKS, BLOCK_BYTES, dtype=torch.uint8)
        self.worker = connector_of(worker=WorkerSide(setup, chosen, 0))
        self.worker.register_kv_caches({"layer": self.kv})
        self.scheduler = connector_of(scheduler=SchedulerSide(setup, chosen))
        self.pool, self.freed = BlockPool(BLOCKS, True, BLOCK), []
        self.scheduler.bind_kv_cache_manager(
            types.SimpleNamespace(
                block_pool=self.pool,
                coordinator=types.SimpleNamespace(single_type_managers=[]),
                free=lambda one: self.freed.append(one.request_id),
            )
        )

    def step(self, output=None):
        """Requests whose loads ended."""
        self.worker.bind_connector_metadata(
            self.scheduler.build_connector_meta(output or output_of())
        )
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        return self.report()

    def report(self):
        ended = self.worker.get_transfer_results(set()).finished_recving
        report = self.worker.build_connector_worker_meta()
        self.scheduler.update_connector_output(
            types.SimpleNamespace(kv_connector_worker_meta=report)
        )
        return ended

    def match(self, one, local=0):
        """Tokens beyond those that vLLM's own cache has."""
        while (found := self.scheduler.get_num_new_matched_tokens(one, local)[0]) is None:
            self.step()
        return found

    def allocate(self, one, blocks, external=0):
        table = types.SimpleNamespace(get_block_ids=lambda: (blocks,))
        self.scheduler.update_state_after_alloc(one, table, external)

    def compute(self, one, blocks, weights=1):
        """All of the prompt, until it is saved, which is the end of the request."""
        assert self.match(one) == 0
        self.allocate(one, blocks)
        self.kv[blocks] = weights
        self.step(output_of(new=[(one.request_id, blocks, 0, len(blocks) * BLOCK)]))
        self.finish(one)

    def finish(self, one):
        eventually(lambda: not self.worker._worker._core.unfinished_saves)
        self.step()
        self.scheduler.request_finished(one, [])

    def load(self, one, blocks):
        """What the blocks are made of then."""
        self.allocate(one, blocks, self.match(one))
        eventually(lambda: one.request_id in self.step())
        return sorted(set(self.kv[blocks].flatten().tolist()))


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="nm") as made:  # a socket's path has 107 bytes
        yield made


@pytest.fixture
def sides(folder):
    made = Sides(folder)
    yield made
    made.worker.shutdown()


def test_what_one_request_computes_another_one_loads(sides):
    sides.compute(request("writer"), [1, 2], weights=7)
    reader = request("reader")
    assert sides.load(reader, [5, 6]) == [7]
    assert not sides.scheduler.has_pending_push_work()


def test_what_is_saved_is_what_the_step_left(sides):
    writer = request("writer")
    assert sides.match(writer) == 0
    sides.allocate(writer, [1, 2])
    sides.kv[[1, 2]] = 7
    sides.step(output_of(new=[("writer", [1, 2], 0, 2 * BLOCK)]))
    sides.kv[[1, 2]] = 9  # of the next step
    sides.finish(writer)
    assert sides.load(request("reader"), [5, 6]) == [7]


@pytest.mark.parametrize("kind", ["memory", "mooncake"])
def test_staging_of_one_block_is_enough(folder, kind):
    """Mooncake has room of its own in front of each."""
    with running_store(kind) as store:
        sides = Sides(folder, store=store, staging_bytes=BLOCK_BYTES, store_timeout_s=PATIENCE_S)
        sides.compute(request("writer", blocks=1), [1], weights=7)
        assert sides.load(request("reader", blocks=1), [5]) == [7]
        sides.worker.shutdown()


def test_a_reset_of_vllms_own_cache_is_a_fence(sides):
    sides.compute(request("writer"), [1, 2])
    assert sides.match(request("before")) == 2 * BLOCK
    assert sides.pool.reset_prefix_cache()
    assert sides.match(request("after")) == 0


def test_the_log_tells_of_a_seal_and_once_of_its_end(sides, monkeypatch):
    told = []
    monkeypatch.setattr(scheduler.logger, "info", lambda text, *args: told.append(text % args))
    side = sides.scheduler._scheduler
    sides.compute(request("before"), [1, 2])
    side.awaited.rpc_failed("update_weights")
    side.seal()
    waits_for_room = request("sealed")
    for _ in range(2):
        assert sides.match(waits_for_room) == 0
        sides.step()
    assert told == ["newmoon: sealed, weights may change; epoch 3"]
    assert side.take_stats().data["sealed_requests"] == 1
    side.reset_cache()
    sides.compute(request("after"), [3, 4])
    sides.compute(request("later", prompt=2), [5, 6])
    assert told[1:] == [
        "newmoon: reset, scope sealed, epoch 4",
        "newmoon: a scope is open again, epoch 5",
    ]
    assert "sealed_requests" not in side.take_stats().data


class Waiting(types.SimpleNamespace):
    __hash__ = object.__hash__


def test_who_is_asked_for_reserves_no_blocks(sides):
    one = Waiting(**vars(request("its load was dropped")))
    in_flight = {one}
    sides.scheduler._scheduler._engine = types.SimpleNamespace(
        scheduler=types.SimpleNamespace(_inflight_prefills=in_flight)
    )
    assert sides.match(one) == 0 and not in_flight


def test_a_name_of_before_is_of_another_request(sides):
    """Of another prompt, too."""
    sides.compute(request("name"), [1, 2], weights=7)
    sides.compute(request("name", prompt=2), [3, 4], weights=8)
    assert sides.load(request("first"), [5, 6]) == [7]
    assert sides.load(request("second", prompt=2), [7, 8]) == [8]


def test_a_request_that_wants_no_load_or_no_save_has_none(sides):
    sides.compute(request("unsaved", params={"newmoon": {"save": False}}), [1, 2])
    sides.compute(request("writer"), [1, 2])
    for asked in ({"load": False}, {"weight_version": "step-1"}, {"lode": True}):
        assert sides.match(request(str(asked), params={"newmoon": asked})) == 0
    assert sides.match(request("reader")) == 2 * BLOCK


def test_a_request_of_other_weights_saves_nothing(sides):
    sides.compute(request("writer", params={"newmoon": {"weight_version": "step-1"}}), [1, 2])
    assert sides.match(request("reader")) == 0


def test_blocks_that_several_steps_fill_are_saved_when_they_are_full(sides):
    """Of most steps the core is told nothing: they neither begin nor fill a block."""
    writer = request("writer", blocks=3)
    hashes, writer.block_hashes = writer.block_hashes, []
    assert sides.match(writer) == 0
    sides.allocate(writer, [1, 2, 3])
    sides.kv[[1, 2, 3]] = 7
    sides.step(output_of(new=[("writer", [1, 2, 3], 0, BLOCK + 8)]))
    for computed in range(BLOCK + 8, 3 * BLOCK):
        writer.block_hashes = hashes[: (computed + 1) // BLOCK]
        sides.step(output_of(cached=[("writer", None, computed, 1)]))
    sides.finish(writer)
    assert sides.match(request("reader", blocks=3)) == 3 * BLOCK


def test_a_request_whose_load_a_fence_overtook_drops_all_its_blocks(sides):
    sides.compute(request("writer"), [1, 2])
    reader = request("reader")
    sides.allocate(reader, [5, 6], sides.match(reader))
    reader.num_computed_tokens = 2 * BLOCK  # as vLLM has it while the load is under way
    sides.worker.bind_connector_metadata(sides.scheduler.build_connector_meta(output_of()))
    sides.worker.start_load_kv(None)
    assert sides.scheduler.has_pending_push_work()
    assert sides.scheduler.reset_cache() is True
    eventually(lambda: "reader" in sides.report())
    assert sides.freed == ["reader"] and reader.num_computed_tokens == 0


def test_blocks_that_a_load_did_not_bring_are_told_once():
    side = WorkerSide(setup=None, options=None, rank=0)
    side._core = types.SimpleNamespace(
        take_finished=lambda: (b"report", ["partly", "not at all"], ["not at all"], [12, 13])
    )
    worker = connector_of(worker=side)
    results = worker.get_transfer_results(set())
    assert (results.finished_recving, results.failed_recving) == (
        {"partly", "not at all"},
        {"not at all"},
    )
    assert worker.get_block_ids_with_load_errors() == {12, 13}
    assert worker.get_block_ids_with_load_errors() == set()


def test_while_a_rank_is_silent_nothing_of_vllms_own_cache_is_used(folder):
    """It may have been told that its weights are others, by `newmoon ctl fence`."""
    sides = Sides(folder, lookup_timeout_s=0.2)
    assert sides.match(request("adopts")) == 0
    sides.step()
    sides.worker.shutdown()
    hit, cold = request("hit"), request("cold")
    assert sides.scheduler.get_num_new_matched_tokens(hit, BLOCK) == (None, False)
    assert sides.scheduler.get_num_new_matched_tokens(cold, 0) == (0, False)
    assert not hit.skip_reading_prefix_cache, "vLLM would take the answer for 0"
    sides.step()
    assert hit.skip_reading_prefix_cache and not cold.skip_reading_prefix_cache
    assert sides.scheduler.get_num_new_matched_tokens(hit, 0) == (0, False), "it is held up no more"
