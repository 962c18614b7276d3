"""A real vLLM on CPU with a tiny model, its weights, and requests to it, as rl_flows.py needs them."""

import asyncio
import dataclasses
import os
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM reserves one more for a connector, and sums differ with the number of threads.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
}

BLOCK = 128  # tokens; vLLM's on CPU
KV_BLOCKS = 26  # so few that other requests push a prompt out of vLLM's own cache
PROMPT_TOKENS = 6 * BLOCK + 4
FOUND = 6 * BLOCK  # whole blocks of a prompt
VOCABULARY = 1024
OUTPUT_TOKENS = 8
RUN_TOKENS = 300  # of a request that runs across an update: it fills two more blocks
TOLERANCE = 1e-3  # of logprobs in float32; stale KV moves them by far more


# Weights are called by the factor to which the norms rise. Of a negative one the linear weights are
# others too, which only a reload brings.
FIRST = 1.0
WEIGHTS = (1.3, 1.9, 2.6)  # what updates bring, in turn
OTHER_LINEAR = -2.2


def make_model(folder: str, weights: float = FIRST) -> str:
    """A tiny model with random weights whose next token depends much on what it attends to."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11 if weights > 0 else 12)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layernorm" in name:
                parameter.mul_(torch.linspace(1.0, abs(weights), parameter.numel()))
    model.save_pretrained(folder)
    return folder


def files_of(model: str, weights: float) -> str:
    """A folder beside the model's, made when it is first asked for."""
    folder = f"{model}-{weights}"
    return folder if pathlib.Path(folder).exists() else make_model(folder, weights)


def prompt_of(seed: int) -> list[int]:
    return [(i * 7919 + seed * 104729) % (VOCABULARY - 10) + 5 for i in range(PROMPT_TOKENS)]


# Methods of rl_worker.WorkerExtension that write no weights; or that are to be taken for such.
READING_RPCS = [
    "fail_next_start",
    "norm_names",
    "process_id",
    "stats",
    "unfinished_saves",
    "write_unseen",
]

# --- requests ---


@dataclasses.dataclass
class Observation:
    """What one request, or the end of one, was answered; and where its KV came from."""

    weights: float
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    cached: int = 0
    external: int = 0


class Running:
    """A request that runs while other things happen."""

    def __init__(self, prompt: list[int]):
        self.prompt = prompt
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.cut = 0  # tokens it had when the weights had changed
        self.task: asyncio.Task[None] | None = None

    async def at_least(self, count: int) -> None:
        while len(self.tokens) < count and self.task and not self.task.done():
            await asyncio.sleep(0.002)

    def after_cut(self, weights: float) -> Observation:
        begin, end = self.cut, self.cut + OUTPUT_TOKENS
        return Observation(
            weights,
            self.prompt + self.tokens[:begin],
            self.tokens[begin:end],
            self.logprobs[begin:end],
        )


class Engine:
    """AsyncLLM, the weights it has now, and the request that runs in the background, if any."""

    def __init__(self, model: str, transfer: dict[str, Any] | None = None):
        from vllm import AsyncEngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.v1.engine.async_llm import AsyncLLM

        self.llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model,
                dtype="float32",
                max_model_len=2048,
                enforce_eager=True,
                skip_tokenizer_init=True,
                num_gpu_blocks_override=KV_BLOCKS,
                worker_extension_cls="rl_worker.WorkerExtension",
                weight_transfer_config=WeightTransferConfig(backend="norms"),
                kv_transfer_config=transfer,
            )
        )
        self.model = model
        self.has_connector = transfer is not None
        self.salted = False  # as the flow says
        self.always_salted = False
        self.weights = FIRST
        self.prompt: list[int] = []  # that both tiers held before the update
        self.running: list[Running] = []
        self._count = 0

    async def rpc(self, method: str, *args: Any) -> Any:
        return (await self.llm.collective_rpc(method, args=args))[0]

    async def _generate(self, prompt: list[int], max_tokens: int) -> AsyncIterator[Any]:
        from vllm import SamplingParams

        self._count += 1
        request: dict[str, Any] = {"prompt_token_ids": prompt}
        if self.salted or self.always_salted:
            request["cache_salt"] = f"policy-{self.weights}"
        parameters = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=0, detokenize=False
        )
        async for output in self.llm.generate(request, parameters, f"request-{self._count}"):
            yield output

    async def ask(self, prompt: list[int], max_tokens: int = OUTPUT_TOKENS) -> Observation:
        before = external_hits()
        async for output in self._generate(prompt, max_tokens):
            last = output
        completion = last.outputs[0]
        return Observation(
            self.weights,
            prompt,
            list(completion.token_ids),
            logprobs_of(completion),
            last.num_cached_tokens or 0,
            external_hits() - before,
        )

    def run_in_background(self, prompt: list[int]) -> Running:
        running = Running(prompt)

        async def follow() -> None:
            async for output in self._generate(prompt, RUN_TOKENS):
                completion = output.outputs[0]
                running.tokens = list(completion.token_ids)
                running.logprobs = logprobs_of(completion)

        running.task = asyncio.create_task(follow())
        self.running.append(running)
        return running

    async def end_running(self) -> None:
        for running in self.running:
            assert running.task
            await running.task
        self.running = []

    def wrote(self, weights: float) -> None:
        """To be said by an update once its weights are there, and before requests go on."""
        self.weights = weights
        for running in self.running:
            running.cut = len(running.tokens)

    async def wait_for_saves(self) -> None:
        if not self.has_connector:
            return
        deadline = time.monotonic() + 20
        while await self.rpc("unfinished_saves") and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    async def push_out(self, seed: int) -> None:
        """Other prompts take the blocks of vLLM's own cache."""
        await self.wait_for_saves()
        for other in range(4):
            await self.ask(prompt_of(seed + other), max_tokens=1)


def logprobs_of(completion: Any) -> list[float]:
    return [
        step[token].logprob
        for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
    ]


def external_hits() -> int:
    from vllm.v1.metrics.reader import get_metrics_snapshot

    return sum(
        metric.value
        for metric in get_metrics_snapshot()
        if metric.name == "vllm:external_prefix_cache_hits"
    )
