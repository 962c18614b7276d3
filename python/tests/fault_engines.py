"""An engine without a model on a real Mooncake store: fault_engines.py ORDER (JSON, see main).

"theirs" is the code of vLLM's own MooncakeStoreConnector as it is: MooncakeStoreScheduler with its
LookupKeyClient, and of each rank MooncakeStoreWorker with its LookupKeyServer, its threads and the
wheel's client. Stood in for is what vLLM would say of itself: configs, and who is which rank.
"ours" is what NewmoonConnector is made of: the core's two roles.

One prompt of BLOCKS whole blocks, whose KV is the same byte all over. A line of JSON in, {"call":
a method of the engine, ...arguments}; a line out, what it answered. Ends with its standard input.
"""

import ctypes
import hashlib
import json
import os
import pathlib
import sys
import time
import types
from typing import Any

BLOCK, BLOCKS = 16, 4  # tokens, blocks
BLOCK_BYTES = 4096
TOKENS = BLOCKS * BLOCK + 1  # the last one is computed in any case
HASHES = [hashlib.sha256(bytes([n])).digest() for n in range(BLOCKS)]
BLOCK_IDS = list(range(1, BLOCKS + 1))  # vLLM's block 0 is none
KV_BYTES = BLOCK_BYTES * (BLOCKS + 1)
STORE_BYTES = 16 << 20
PATIENCE_S = 20


def eventually(holds: Any) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


class Ranks:
    """Their KV: what "computing" fills with a byte."""

    def __init__(self, count: int):
        self.kv = [(ctypes.c_uint8 * KV_BYTES)() for _ in range(count)]

    def fill(self, byte: int) -> None:
        for kv in self.kv:
            ctypes.memset(kv, byte, KV_BYTES)

    def bytes_in_blocks(self) -> list[list[int]]:
        """By rank, which bytes its blocks are made of."""
        return [sorted(set(bytes(kv)[BLOCK_BYTES:])) for kv in self.kv]


class Theirs(Ranks):
    def __init__(self, order: dict[str, Any]):
        masters = order["masters"]
        super().__init__(len(masters))
        import torch
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import data, scheduler, worker
        from vllm.v1 import kv_cache_interface as interface

        self._data = data
        spec = interface.FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32
        )
        cache = interface.KVCacheConfig(
            num_blocks=BLOCKS + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
        )
        # vLLM's process groups: none are needed to know who is who.
        alone = types.SimpleNamespace(world_size=1, rank_in_group=0)
        worker.get_pcp_group = worker.get_dcp_group = lambda: alone
        worker.get_tensor_model_parallel_world_size = lambda: len(masters)
        self.workers = []
        for rank, master in enumerate(masters):
            worker.get_tensor_model_parallel_rank = lambda: rank  # noqa: B023, called in this turn
            name_master(order["folder"], master)
            config = config_of(order["model"], rank, len(masters))
            self.workers.append(worker.MooncakeStoreWorker(config, cache))
            tensor = torch.frombuffer(self.kv[rank], dtype=torch.uint8)
            self.workers[rank].register_kv_caches({"layer": tensor.view(BLOCKS + 1, BLOCK_BYTES)})
        config = config_of(order["model"], 0, len(masters))
        self.endpoint = worker.get_zmq_rpc_path_lookup(config)
        self.scheduler = scheduler.MooncakeStoreScheduler(config, cache)
        self._count = 0

    def _request(self, **more: Any) -> Any:
        self._count += 1
        return self._data.ReqMeta(
            req_id=f"request-{self._count}",
            token_len_chunk=BLOCKS * BLOCK,
            block_ids=(BLOCK_IDS,),
            block_hashes=HASHES,
            prefill_end_tokens=BLOCKS * BLOCK,
            store_job_id=self._count,
            **more,
        )

    def save(self, byte: int) -> None:
        """Queues a save on every rank, as a step that computed the prompt does."""
        self.fill(byte)
        request = self._request(can_save=True)
        for worker in self.workers:
            worker.kv_send_thread.add_request(request)

    def unfinished(self) -> list[int]:
        """Saves that are queued or run, by rank."""
        return [worker.kv_send_thread.request_queue.unfinished_tasks for worker in self.workers]

    def hit(self) -> int:
        """Tokens."""
        return self.scheduler.client.lookup("lookup", TOKENS, HASHES).hit_length

    def load(self) -> list[list[int]]:
        self.fill(0)
        spec = self._data.LoadSpec(0, BLOCKS * BLOCK, can_load=True)
        metadata = types.SimpleNamespace(requests=[self._request(load_spec=spec)])
        for worker in self.workers:
            worker.start_load_kv(metadata)
        assert eventually(
            lambda: not any(worker.recv_request_queue.unfinished_tasks for worker in self.workers)
        )
        return self.bytes_in_blocks()

    def reset(self) -> dict[str, bool]:
        return {"success": self.scheduler.reset_store()}

    def saved_tokens(self) -> list[int]:
        """Of the last request, by rank, as each takes it to be."""
        return [
            worker.kv_send_thread._saved_offset.get(f"request-{self._count}", 0)
            for worker in self.workers
        ]

    def begin_puts(self) -> list[int]:
        """Of the prompt's blocks on rank 0, and does not end them."""
        worker = self.workers[0]
        keys = [worker.token_dbs[0].key_for(block_hash) for block_hash in HASHES]
        return worker.store.batch_put_session_start(keys, [BLOCK_BYTES] * BLOCKS)

    def server_lives(self) -> bool:
        return self.workers[0].lookup_server.thread.is_alive()


def name_master(folder: str, master: int) -> None:
    """For the next store that is opened."""
    file = pathlib.Path(folder, f"mooncake-{master}.json")
    file.write_text(json.dumps({
        "metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{master}",
        "protocol": "tcp", "global_segment_size": STORE_BYTES, "local_buffer_size": STORE_BYTES,
    }))  # fmt: skip
    os.environ["MOONCAKE_CONFIG_PATH"] = str(file)


def config_of(model: str, rank: int, ranks: int) -> types.SimpleNamespace:
    space = types.SimpleNamespace
    return space(
        kv_transfer_config=space(kv_role="kv_both", kv_connector_extra_config={}),
        kv_events_config=None,
        speculative_config=None,
        model_config=space(
            model=model,
            enable_sleep_mode=False,
            enable_cumem_allocator=False,
            get_num_layers=lambda _: 1,
            get_total_num_kv_heads=lambda: ranks,
        ),
        parallel_config=space(
            data_parallel_index=0,
            decode_context_parallel_size=1,
            pipeline_parallel_size=1,
            rank=rank,
            world_size=ranks,
        ),
        cache_config=space(
            block_size=BLOCK,
            enable_prefix_caching=True,
            num_gpu_blocks=BLOCKS + 1,
            prefix_match_unit=None,
        ),
    )


class Ours(Ranks):
    def __init__(self, order: dict[str, Any]):
        masters = order["masters"]
        super().__init__(len(masters))
        from newmoon._core import ConnectorScheduler, ConnectorWorker

        endpoints = [f"ipc://{order['folder']}/rank{rank}.sock" for rank in range(len(masters))]
        self.endpoint = endpoints[0]
        sizes = f"global_segment_size={STORE_BYTES}&local_buffer_size={STORE_BYTES}"
        options = f"metrics_port={order['metrics_port']}&local_hostname=127.0.0.1&{sizes}"
        self.workers = [
            ConnectorWorker(
                store=f"mooncake://127.0.0.1:{masters[rank]}?{options}",
                store_bytes=STORE_BYTES,
                store_timeout_s=10.0,
                load_timeout_s=10.0,
                layout="layout",
                rank=rank,
                rank_count=len(masters),
                block_size=BLOCK,
                endpoint=endpoint,
                engine_id="engine",
                regions=[(ctypes.addressof(self.kv[rank]), BLOCK_BYTES, BLOCK_BYTES)],
                block_count=BLOCKS + 1,
                staging_bytes=1 << 20,
            )
            for rank, endpoint in enumerate(endpoints)
        ]
        self.scheduler = ConnectorScheduler(
            endpoints=endpoints,
            namespace="",
            model=order["model"],
            layout="layout",
            block_size=BLOCK,
            reset_mode=order["reset_mode"],
            lookup_timeout_s=10.0,
        )
        self._count = 0

    def _new_request(self) -> str:
        self._count += 1
        return f"request-{self._count}"

    def _step(self) -> set[str]:
        """Requests whose loads ended."""
        message = self.scheduler.build_connector_meta()
        ended, reports = set(), []
        for worker in self.workers:
            worker.bind(message)
            worker.start_load_kv()
            worker.wait_for_save()
            report, loads, _, _ = worker.take_finished()
            reports += [] if report is None else [report]
            ended |= set(loads)
        self.scheduler.update_connector_output(reports)
        return ended

    def save(self, byte: int) -> None:
        self.fill(byte)
        self._step()  # opens the scope, where vLLM's would have asked for a match
        request = self._new_request()
        self.scheduler.schedule(request, HASHES, BLOCK_IDS, True, 0, TOKENS, True)
        self._step()
        self.scheduler.request_finished(request)

    def unfinished(self) -> list[int]:
        self._step()
        return [worker.unfinished_saves for worker in self.workers]

    def _match(self, request: str) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.scheduler.match(request, HASHES, TOKENS, 0)) is None:
            assert time.monotonic() < deadline, "no answer to a lookup"
            self._step()
        return found

    def hit(self) -> int:
        request = self._new_request()
        found = self._match(request)
        self.scheduler.request_finished(request)
        return found

    def load(self) -> list[list[int]]:
        request = self._new_request()
        found = self._match(request)
        self.fill(0)
        assert self.scheduler.update_state_after_alloc(request, BLOCK_IDS, 0, found)
        assert eventually(lambda: request in self._step())
        self.scheduler.request_finished(request)
        return self.bytes_in_blocks()

    def reset(self, timeout_s: float = 5.0) -> dict[str, Any]:
        return dict(self.scheduler.reset(timeout_s=timeout_s))


def main() -> None:
    """ORDER: way, model, folder (of sockets), masters (a port a rank), metrics_port, reset_mode."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    order = json.loads(sys.argv[1])
    engine = {"theirs": Theirs, "ours": Ours}[order["way"]](order)
    print(json.dumps(engine.endpoint), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(engine, request.pop("call"))(**request)
        print(json.dumps(answer), file=replies, flush=True)
    os._exit(0)  # leaving in good order takes seconds, and the master ends with the test


if __name__ == "__main__":
    main()
