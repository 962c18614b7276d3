"""A fence and vLLM's own prefix cache, without an engine."""

import sys
import types

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_events import AllBlocksCleared
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.request import RequestStatus

from newmoon.vllm.local_cache import LocalCache
from newmoon.vllm.scheduler import SchedulerSide

BLOCKS = 8


class Cache:
    """A pool of vLLM's in which the first `cached` blocks have names; `held` are in use."""

    def __init__(self, cached=3, held=0, **options):
        self.pool = BlockPool(BLOCKS + 1, True, 16, **options)
        blocks = self.pool.get_new_blocks(cached)
        for n, block in enumerate(blocks):
            self.name(block, n)
        self.held, free = blocks[:held], blocks[held:]
        self.pool.free_blocks(free)
        self.requests = types.SimpleNamespace(
            req_to_blocks={"holds": self.held, "waits": []}, num_cached_block={"holds": held}
        )
        coordinator = types.SimpleNamespace(single_type_managers=[self.requests])
        manager = types.SimpleNamespace(block_pool=self.pool, coordinator=coordinator)
        self.local = LocalCache(manager)

    def name(self, block, n):
        self.pool._insert_block_hash(self.key(n), block, num_tokens=16)

    def key(self, n):
        return make_block_hash_with_group_id(bytes([n]) * 32, 0)

    def found(self, n):
        return self.pool.get_cached_block(bytes([n]) * 32, [0])


def test_nothing_is_found_after_a_fence():
    cache = Cache(held=1)
    assert all(cache.found(n) for n in range(3))
    cache.local.forget()
    assert not any(cache.found(n) for n in range(3))
    assert not cache.local.was_reset(), "it was not vLLM"


def test_blocks_are_named_anew_by_those_who_are_given_them():
    cache = Cache()
    cache.local.forget()
    blocks = cache.pool.get_new_blocks(BLOCKS)
    assert all(block.block_hash is None for block in blocks)
    cache.name(blocks[5], 1)
    assert cache.found(1) == [blocks[5]]


def test_an_old_holder_of_a_name_takes_nothing_from_the_new_one():
    cache = Cache(held=1)
    (old,) = cache.held
    cache.local.forget()
    (new,) = cache.pool.get_new_blocks(1)
    cache.name(new, 0)
    cache.pool.free_blocks([old])
    cache.pool.get_new_blocks(cache.pool.get_num_free_blocks())  # the old one among them
    assert cache.found(0) == [new]


def test_requests_with_blocks_of_before_name_none():
    cache = Cache(held=1)
    cache.local.forget()
    assert cache.requests.num_cached_block == {"holds": sys.maxsize}


def test_a_reset_of_vllms_own_is_told_once():
    cache = Cache()
    assert not cache.local.was_reset()
    assert cache.pool.reset_prefix_cache()
    assert cache.local.was_reset()
    assert not cache.local.was_reset()


def test_who_listens_to_kv_events_is_told_if_there_was_anything():
    cache = Cache(enable_kv_cache_events=True)
    cache.pool.take_events()
    cache.local.forget()
    cache.local.forget()
    assert cache.pool.take_events() == [AllBlocksCleared()]


def test_what_was_loaded_and_has_not_begun_is_dropped_once():
    def request(name, status):
        return types.SimpleNamespace(request_id=name, status=status, num_computed_tokens=32)

    holding = [
        request("loads", RequestStatus.WAITING_FOR_REMOTE_KVS),
        request("loaded", RequestStatus.WAITING_FOR_REMOTE_KVS),
        request("waits for room", RequestStatus.WAITING),
        request("session", RequestStatus.WAITING_FOR_STREAMING_REQ),
        request("not ours", RequestStatus.WAITING),
    ]
    side, freed = object.__new__(SchedulerSide), []
    side._requests = {one.request_id: one for one in holding if one.request_id != "not ours"}
    side._manager = types.SimpleNamespace(free=lambda one: freed.append(one.request_id))
    side._engine = types.SimpleNamespace(
        scheduler=types.SimpleNamespace(
            kv_holding_waiting=holding, finished_recving_kv_req_ids={"loaded"}
        )
    )
    side.drop_loaded()
    assert freed == ["loaded", "waits for room"]
    side.drop_loaded()
    assert freed == ["loaded", "waits for room"], "they hold nothing any more"
