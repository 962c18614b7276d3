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
from collections.abc import Awaitable, Callable
from typing import Any

from rl_engine import (
    BLOCK,
    OTHER_LINEAR,
    OUTPUT_TOKENS,
    RUN_TOKENS,
    WEIGHTS,
    Engine,
    Observation,
    Running,
    files_of,
    prompt_of,
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
