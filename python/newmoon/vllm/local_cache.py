"""vLLM's own prefix cache, as far as a fence touches it."""

import sys
from typing import TYPE_CHECKING

from vllm.distributed.kv_events import AllBlocksCleared

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager


class LocalCache:
    """Its map from hashes to blocks is replaced whole, by vLLM when it resets it and here: in
    constant time, however many blocks it holds."""

    def __init__(self, manager: "KVCacheManager"):
        self._manager, self._pool = manager, manager.block_pool
        self._map = self._pool.cached_block_hash_to_block

    def was_reset(self) -> bool:
        """By vLLM, since the last call of any of these."""
        seen, self._map = self._map, self._pool.cached_block_hash_to_block
        return seen is not self._map

    def forget(self) -> None:
        """Nothing that it holds is found any more. Requests that run on with some of it add
        nothing to it (rule BIRTH), until they drop their blocks.

        Blocks keep the names they had in the old map, as in vLLM's own eviction: whoever is
        given one takes its name away first.
        """
        pool = self._pool
        if len(pool.cached_block_hash_to_block) > 0:
            pool.cached_block_hash_to_block = type(pool.cached_block_hash_to_block)()
            pool.cached_block_hashes_by_block = {}
            if pool.enable_kv_cache_events:
                pool.kv_event_queue.append(AllBlocksCleared())
        self._map = pool.cached_block_hash_to_block
        for manager in self._manager.coordinator.single_type_managers:
            for request_id, blocks in manager.req_to_blocks.items():
                if blocks:  # to vLLM all that it ever fills is cached
                    manager.num_cached_block[request_id] = sys.maxsize
