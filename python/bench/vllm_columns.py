"""One engine of real vLLM a column, all of them alive at once, so that they take turns."""

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncIterator
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",  # vLLM reserves one for a connector
    "VLLM_LOGGING_LEVEL": "WARNING",
    "MC_LOG_LEVEL": "ERROR",
}

from vllm_models import VOCABULARY
from vllm_probe import READING_RPCS

PEER, ON_MOONCAKE, ON_MEMORY = COLUMNS = ("in-tree", "mooncake", "memory")
IDLE_S = 1.1  # vLLM's worker looks for work for a second before it sleeps
STORE_BYTES = 1 << 30  # of each column's store


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of an engine."""

    model: str
    block: int  # tokens
    kv_blocks: int  # vLLM's own
    staging_bytes: int = 256 << 20


def transfer_config(column: str, url: str, shape: Shape) -> dict[str, Any]:
    config = {"kv_connector_module_path": "vllm_probe", "kv_role": "kv_both"}
    if column == PEER:
        return config | {"kv_connector": "InTree"}
    options = {
        "store": "memory" if column == ON_MEMORY else url,
        "store_bytes": STORE_BYTES,
        "store_timeout_s": 5,
        "lookup_timeout_s": 5,
        "staging_bytes": shape.staging_bytes,
        "reading_rpcs": READING_RPCS,
    }
    return config | {"kv_connector": "Ours", "kv_connector_extra_config": options}


class Column:
    def __init__(self, name: str, url: str, shape: Shape):
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.name, self.shape = name, shape
        self._count = 0
        self._background: list[asyncio.Task[None]] = []
        self.llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=shape.model,
                dtype="bfloat16",
                block_size=shape.block,
                max_model_len=4096 if "smol" not in shape.model else 2048,
                enforce_eager=True,
                skip_tokenizer_init=True,
                disable_log_stats=True,
                num_gpu_blocks_override=shape.kv_blocks,
                worker_extension_cls="vllm_probe.WorkerExtension",
                kv_transfer_config=transfer_config(name, url, shape),
            )
        )

    async def bench(self, what: str, *args: Any) -> Any:
        return await self.llm.engine_core.call_utility_async("bench", what, list(args))

    async def generate(self, prompt: list[int], max_tokens: int) -> AsyncIterator[Any]:
        from vllm import SamplingParams

        self._count += 1
        parameters = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        name = f"request-{self._count}"
        async for output in self.llm.generate({"prompt_token_ids": prompt}, parameters, name):
            yield output

    async def ask(self, prompt: list[int], max_tokens: int = 1) -> tuple[float, int]:
        """Milliseconds to the first token, and how many tokens were found in a cache."""
        begin, first_ms, last = time.perf_counter(), 0.0, None
        async for last in self.generate(prompt, max_tokens):
            first_ms = first_ms or (time.perf_counter() - begin) * 1000
        return first_ms, last.num_cached_tokens or 0

    async def start_generating(self, seed: int, requests: int, prompt_tokens: int) -> None:
        """Requests that run until stop_generating(); returns when all of them do."""
        started = [asyncio.Event() for _ in range(requests)]

        async def follow(number: int) -> None:
            prompt = prompt_of(seed + number, prompt_tokens)
            limit = self.llm.model_config.max_model_len - prompt_tokens
            while True:
                async for _ in self.generate(prompt, limit):
                    started[number].set()

        self._background += [asyncio.create_task(follow(n)) for n in range(requests)]
        for event in started:
            await asyncio.wait_for(event.wait(), 120)

    async def stop_generating(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background = []

    async def saved(self, blocks: int) -> None:
        """Waits until the store has them."""
        deadline = time.monotonic() + 60
        while True:
            done, waiting = (await self.llm.collective_rpc("bench_saved"))[0]
            if done >= blocks if self.name != PEER else waiting == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {blocks} blocks were not saved, but {done}")
            await asyncio.sleep(0.003)

    async def saved_so_far(self) -> int:
        return (await self.llm.collective_rpc("bench_saved"))[0][0]


def prompt_of(seed: int, tokens: int) -> list[int]:
    return [(i * 7919 + seed * 104729 + (i * seed) % 31) % (VOCABULARY - 10) + 5
            for i in range(tokens)]  # fmt: skip
