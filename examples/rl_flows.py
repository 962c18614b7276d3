"""Weight updates as RL frameworks do them, on real vLLM on CPU.

Each update below makes the calls of one framework, in its order, on vLLM's AsyncLLM; in place of
a trainer, worker methods with the framework's name for them write really other weights. (Linear
weights are prepacked on CPU and cannot be written in place; those of norms can, and a reload from
files brings both.)

`run_flow` wraps requests around an update and tells what came out. `expect_all` computes the same
on engines that have no connector, each started on files of the weights, and never written.
"""

import asyncio
import dataclasses
import os
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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


# --- the updates ---

Update = Callable[[Engine, float], Awaitable[None]]


async def verl_checkpoint_engine(engine: Engine, weights: float) -> None:
    """CheckpointEngineManager.update_weights with a backend other than naive."""
    llm = engine.llm
    await llm.pause_generation(mode="abort", clear_cache=True)
    await llm.sleep(level=2)
    await llm.wake_up(tags=["weights"])
    await engine.rpc("update_weights_from_ipc", weights)
    engine.wrote(weights)
    await llm.wake_up(tags=["kv_cache"])
    await llm.reset_prefix_cache(reset_connector=True)
    await llm.resume_generation()


async def verl_naive(engine: Engine, weights: float) -> None:
    """IPC or delta update, then clear_kv_cache; what it answers is ignored."""
    llm = engine.llm
    await engine.rpc("update_weights_from_ipc", weights)
    engine.wrote(weights)
    await llm.reset_prefix_cache(reset_connector=True)
    await llm.reset_mm_cache()
    await llm.reset_encoder_cache()


async def openrlhf_sync(engine: Engine, weights: float) -> None:
    """The reset is sent off first, of the local cache alone, and awaited at the end."""
    names = await engine.rpc("norm_names")
    reset = asyncio.create_task(engine.llm.reset_prefix_cache())
    await asyncio.sleep(0)
    for name in names:
        await engine.rpc("update_weight", name, weights)
    engine.wrote(weights)
    await reset


async def openrlhf_async(engine: Engine, weights: float) -> None:
    """With partial rollout: requests are kept."""
    names = await engine.rpc("norm_names")
    await engine.llm.pause_generation(mode="keep")
    try:
        for name in names:
            await engine.rpc("update_weight", name, weights)
        engine.wrote(weights)
    finally:
        await engine.llm.resume_generation()


async def nemo_rl_refit(engine: Engine, weights: float) -> None:
    """With recompute_kv_cache_after_weight_updates. With in_flight_weight_updates requests run:
    then vLLM refuses the reset, and nobody looks."""
    await engine.rpc("update_weights_from_collective", weights)
    engine.wrote(weights)
    await engine.llm.reset_prefix_cache()


async def nemo_rl_keeping_cache(engine: Engine, weights: float) -> None:
    """Without recompute_kv_cache_after_weight_updates."""
    await engine.rpc("update_weights_from_collective", weights)
    engine.wrote(weights)


async def nemo_rl_sleeping(engine: Engine, weights: float) -> None:
    """sleep_async, refit, wake_up."""
    llm = engine.llm
    await llm.reset_prefix_cache()
    await llm.reset_mm_cache()
    await llm.sleep(level=1)
    await llm.wake_up(tags=["weights"])
    await engine.rpc("update_weights_from_collective", weights)
    engine.wrote(weights)
    await llm.wake_up(tags=["kv_cache"])
    await llm.resume_generation()


async def nemo_rl_dynamo(engine: Engine, weights: float) -> None:
    await engine.llm.pause_generation(mode="wait", clear_cache=True)
    await engine.rpc("update_weights_from_collective", weights)
    engine.wrote(weights)
    await engine.llm.resume_generation()


async def transfer(engine: Engine, weights: float) -> None:
    """vLLM's own start, update and finish."""
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    await engine.llm.start_weight_update()
    await engine.llm.update_weights(WeightTransferUpdateRequest(update_info={"factor": weights}))
    await engine.llm.finish_weight_update(f"step-{weights}")
    engine.wrote(weights)


async def skyrl_pausing(engine: Engine, weights: float) -> None:
    """Non-colocated: the reset runs beside the transfer."""
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    try:
        await asyncio.gather(
            engine.llm.reset_prefix_cache(reset_running_requests=True), transfer(engine, weights)
        )
    finally:
        await engine.llm.resume_generation()


async def skyrl_reset_last(engine: Engine, weights: float) -> None:
    """The same, if the transfer is the quicker one."""
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    try:
        await transfer(engine, weights)
        await engine.llm.reset_prefix_cache(reset_running_requests=True)
    finally:
        await engine.llm.resume_generation()


async def skyrl_fully_async(engine: Engine, weights: float) -> None:
    """Without clear_kv_cache_on_weight_sync: no reset, and requests go on with their KV."""
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    try:
        await transfer(engine, weights)
    finally:
        await engine.llm.resume_generation()


async def skyrl_offloading_kv(engine: Engine, weights: float) -> None:
    """offload_kv_for_weight_sync, fully async: the workers put the KV of frozen requests aside and
    back, past vLLM's sleep."""
    await engine.llm.pause_generation(mode="keep", clear_cache=False)
    try:
        await engine.rpc("skyrl_sleep_for_weight_sync", True)
        await engine.rpc("skyrl_wake_for_weight_sync", ["weights"])
        await transfer(engine, weights)
        await engine.rpc("skyrl_wake_for_weight_sync", ["kv_cache"])
    finally:
        await engine.llm.resume_generation()


async def skyrl_colocated(engine: Engine, weights: float) -> None:
    llm = engine.llm
    await llm.sleep(level=2)
    await llm.wake_up(tags=["weights"])
    await transfer(engine, weights)
    await llm.wake_up(tags=["kv_cache"])
    await llm.resume_generation()


async def vllm_transfer(engine: Engine, weights: float) -> None:
    """The weight update API alone: vLLM resets nothing by itself."""
    await transfer(engine, weights)


async def vllm_pause_abort(engine: Engine, weights: float) -> None:
    await engine.llm.pause_generation(mode="abort", clear_cache=True)
    await transfer(engine, weights)
    await engine.llm.resume_generation()


async def vllm_pause_keep(engine: Engine, weights: float) -> None:
    await engine.llm.pause_generation(mode="keep", clear_cache=True)
    await transfer(engine, weights)
    await engine.llm.resume_generation()


async def vllm_pause_wait(engine: Engine, weights: float) -> None:
    await engine.llm.pause_generation(mode="wait", clear_cache=True)
    await transfer(engine, weights)
    await engine.llm.resume_generation()


async def vllm_sleeping(engine: Engine, weights: float) -> None:
    """Whatever writes between the two: nothing else tells of it."""
    await engine.llm.sleep(level=1)
    await engine.rpc("write_unseen", weights)
    engine.wrote(weights)
    await engine.llm.wake_up()


async def reload(engine: Engine, weights: float) -> None:
    await engine.rpc("reload_weights", None, files_of(engine.model, weights))
    engine.wrote(weights)


async def vllm_reload(engine: Engine, weights: float) -> None:
    """vLLM's own reload from other files; nothing is reset."""
    await reload(engine, weights)


async def vllm_sleep_and_reload(engine: Engine, weights: float) -> None:
    """As vLLM's page on sleep mode has it."""
    llm = engine.llm
    await llm.sleep(level=2)
    await llm.wake_up(tags=["weights"])
    await reload(engine, weights)
    await llm.wake_up(tags=["kv_cache"])
    await llm.resume_generation()


async def failing_transfer(engine: Engine, weights: float) -> None:
    """It ends in the middle, with other weights than before."""
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    await engine.llm.start_weight_update()
    update = WeightTransferUpdateRequest(update_info={"factor": weights, "fails": True})
    await fails(engine.llm.update_weights(update))
    engine.wrote(weights)


async def fails(call: Awaitable[Any]) -> None:
    try:
        await call
    except Exception:
        return
    raise AssertionError("it was to fail")


async def vllm_failed_start(engine: Engine, weights: float) -> None:
    await engine.rpc("fail_next_start", weights)
    await fails(engine.llm.start_weight_update())
    engine.wrote(weights)


async def vllm_failed_update(engine: Engine, weights: float) -> None:
    await failing_transfer(engine, weights)
    await engine.llm.reset_prefix_cache(reset_connector=True)


async def vllm_repeated_update(engine: Engine, weights: float) -> None:
    """A request meets the weights of the update that failed, before the next one."""
    await failing_transfer(engine, weights + 0.05)
    await engine.ask(engine.prompt)
    await transfer(engine, weights)


async def vllm_reset(engine: Engine, weights: float) -> None:
    """A worker writes with nobody's knowledge; then both caches are reset."""
    await engine.rpc("write_unseen", weights)
    engine.wrote(weights)
    await engine.llm.reset_prefix_cache(reset_connector=True)


async def vllm_local_reset(engine: Engine, weights: float) -> None:
    await engine.rpc("write_unseen", weights)
    engine.wrote(weights)
    await engine.llm.reset_prefix_cache()


async def vllm_reset_running(engine: Engine, weights: float) -> None:
    await engine.rpc("write_unseen", weights)
    answer = await engine.llm.reset_prefix_cache(
        reset_running_requests=True, reset_connector=True
    )
    assert answer
    engine.wrote(weights)


async def vllm_reset_refused(engine: Engine, weights: float) -> None:
    """vLLM refuses a local reset while a request runs."""
    await engine.rpc("write_unseen", weights)
    engine.wrote(weights)
    assert not await engine.llm.reset_prefix_cache()


async def vllm_unseen(engine: Engine, weights: float) -> None:
    """A worker writes with nobody's knowledge, and nothing is reset."""
    await engine.rpc("write_unseen", weights)
    engine.wrote(weights)


@dataclasses.dataclass(frozen=True)
class Flow:
    framework: str
    mode: str
    update: Update
    # A request that runs when the update begins: None (there is none), "aborted" (the client sends
    # it again with what it had), "recomputed" (it goes on, its KV computed anew), "mixed" (it goes
    # on with the KV it has), "ended" (it comes to its end before the weights are written).
    running: str | None = None
    salted: bool = False  # cache_salt per version of the weights
    not_guaranteed: tuple[str, ...] = ()  # of what run_flow sees, with our connector
    other_linear: bool = False  # to OTHER_LINEAR; the flow behind it must reload

    @property
    def name(self) -> str:
        return f"{self.framework}: {self.mode}"


MIXED = ("running",)
ALL = ("running", "left", "after", "again")
FLOWS = [
    Flow("verl", "checkpoint engine, partial rollout", verl_checkpoint_engine, "aborted"),
    Flow("verl", "naive (IPC, delta)", verl_naive),
    Flow("OpenRLHF", "sync", openrlhf_sync),
    Flow("OpenRLHF", "async, partial rollout", openrlhf_async, "recomputed"),
    Flow("NeMo-RL", "waiting, recompute", nemo_rl_refit),
    Flow("NeMo-RL", "waiting, keep cache", nemo_rl_keeping_cache),
    Flow("NeMo-RL", "in flight, recompute", nemo_rl_refit, "mixed", not_guaranteed=MIXED),
    Flow("NeMo-RL", "in flight, keep cache", nemo_rl_keeping_cache, "mixed", not_guaranteed=MIXED),
    Flow("NeMo-RL", "colocated", nemo_rl_sleeping),
    Flow("NeMo-RL", "Dynamo", nemo_rl_dynamo),
    Flow("SkyRL", "non-colocated", skyrl_pausing, "recomputed"),
    Flow("SkyRL", "non-colocated, reset last", skyrl_reset_last, "recomputed"),
    Flow("SkyRL", "non-colocated, cache_salt", skyrl_pausing, "recomputed", salted=True),
    Flow("SkyRL", "fully async", skyrl_fully_async, "mixed", not_guaranteed=MIXED),
    Flow("SkyRL", "fully async, cache_salt", skyrl_fully_async, "mixed", True, MIXED),
    Flow("SkyRL", "KV offload", skyrl_offloading_kv, "mixed", not_guaranteed=MIXED),
    Flow("SkyRL", "colocated", skyrl_colocated),
    Flow("vLLM", "weight update API alone", vllm_transfer),
    Flow("vLLM", "weight update API alone, running", vllm_transfer, "mixed", not_guaranteed=MIXED),
    Flow("vLLM", "pause abort", vllm_pause_abort, "aborted"),
    Flow("vLLM", "pause keep", vllm_pause_keep, "recomputed"),
    Flow("vLLM", "pause wait", vllm_pause_wait, "ended"),
    Flow("vLLM", "sleep, wake up", vllm_sleeping),
    Flow("vLLM", "reload of other files", vllm_reload, other_linear=True),
    Flow("vLLM", "sleep, reload of other files", vllm_sleep_and_reload),
    Flow("vLLM", "failed start", vllm_failed_start),
    Flow("vLLM", "failed update, connector reset", vllm_failed_update),
    Flow("vLLM", "failed update, updated again", vllm_repeated_update),
    Flow("vLLM", "unseen write, connector reset", vllm_reset),
    Flow("vLLM", "unseen write, local reset", vllm_local_reset),
    Flow("vLLM", "unseen write, connector reset, running", vllm_reset_running, "recomputed"),
    Flow("vLLM", "unseen write, refused reset", vllm_reset_refused, "mixed", not_guaranteed=MIXED),
    Flow("vLLM", "unseen write, no reset", vllm_unseen, not_guaranteed=ALL),
]


def next_weights(engine: Engine, flow: Flow) -> float:
    if flow.other_linear:
        return OTHER_LINEAR
    place = WEIGHTS.index(engine.weights) + 1 if engine.weights in WEIGHTS else 0
    return WEIGHTS[place % len(WEIGHTS)]


async def run_flow(engine: Engine, flow: Flow, number: int) -> dict[str, Observation]:
    """Requests before, across and after one update; no flow has the prompts of another.

    "after": a prompt that both tiers held before. "again": the same once other prompts have pushed
    it out of vLLM's own cache. "running": what a request that ran across the update was answered
    behind it. "left": a prompt that consists of that request, with what it was answered.
    """
    seed, weights = 100 * number, next_weights(engine, flow)
    engine.salted = flow.salted
    engine.prompt = prompt_of(seed)
    await engine.ask(engine.prompt)
    await engine.wait_for_saves()
    running = engine.run_in_background(prompt_of(seed + 1)) if flow.running else None
    if running:
        await running.at_least(4)
    await flow.update(engine, weights)
    seen = await end_running(engine, flow, running) if running else {}
    seen["after"] = await engine.ask(prompt_of(seed))
    await engine.push_out(seed + 50)
    seen["again"] = await engine.ask(prompt_of(seed))
    return seen


async def end_running(engine: Engine, flow: Flow, running: Running) -> dict[str, Observation]:
    await engine.end_running()
    if flow.running == "aborted":
        return {"running": await engine.ask(running.prompt + running.tokens)}
    seen = {}
    if flow.running == "ended":
        assert running.cut == RUN_TOKENS, "it was to end first"
    else:
        assert running.cut < RUN_TOKENS - OUTPUT_TOKENS, "it was to run across the update"
        seen["running"] = running.after_cut(engine.weights)
    seen["left"] = await engine.ask(running.prompt + running.tokens[: 2 * BLOCK])
    return seen


async def expect_all(model: str, seen: list[Observation]) -> list[float]:
    """Of each, the largest difference of a logprob from what is right; see expect()."""
    differences = {}
    for weights in sorted({one.weights for one in seen}):
        plain = Engine(files_of(model, weights))
        plain.weights = weights
        for number, one in enumerate(seen):
            if one.weights == weights:
                differences[number] = await expect(plain, one)
        plain.llm.shutdown()
    return [differences[number] for number in range(len(seen))]


async def expect(plain: Engine, seen: Observation) -> float:
    """The largest difference of a logprob from what an engine answers that has no connector and was
    started on these weights' files, its cache reset and then primed to the same hit; infinite if
    tokens differ."""
    assert plain.weights == seen.weights and await plain.llm.reset_prefix_cache()
    if seen.cached:
        await plain.ask(seen.prompt[: seen.cached + 1], max_tokens=1)
    right = await plain.ask(seen.prompt, max_tokens=len(seen.tokens))
    if right.tokens != seen.tokens:
        return float("inf")
    return max(abs(a - b) for a, b in zip(right.logprobs, seen.logprobs, strict=True))
