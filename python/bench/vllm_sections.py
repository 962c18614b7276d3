"""What `./dev bench-vllm` measures: one function a section. The columns take turns, several times
over, so that what else the machine does meets all of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from compare import Flat, Row
from vllm_columns import COLUMNS, IDLE_S, ON_MEMORY, ON_MOONCAKE, PEER, Column, prompt_of

Columns = dict[str, Column]
Results = tuple[list[Row], list[Flat]]

LOOKUP_SAMPLES = {64: 15, 1024: 10, 8192: 15}  # blocks: samples a turn
STEP_REQUESTS = (1, 16, 64)
STEP_COUNT = 60  # a turn
ADMITTED = 12  # requests a turn
RESET_ROUNDS = {1_000: 5, 10_000: 5, 100_000: 3}  # keys: resets of a column
TTFT_BLOCKS = 6  # of the prompt that is found
SAVE_PROMPTS = 24  # of one block
SAVE_ROUNDS = 18


async def turns(columns: Columns, rounds: int) -> AsyncIterator[tuple[int, Column]]:
    order = list(columns.values())
    for number in range(rounds):
        order.reverse()  # the machine's speed drifts: nobody is always the first
        for column in order:
            await asyncio.sleep(IDLE_S)
            yield number, column


def empty() -> dict[str, list[float]]:
    return {column: [] for column in COLUMNS}


# --- on the tiny model ---


async def lookup(columns: Columns) -> Results:
    """Client, server, store and back, while a request is decoded."""
    cases = [(blocks, hit) for blocks in LOOKUP_SAMPLES for hit in (True, False)]
    samples = {case: empty() for case in cases}
    for column in columns.values():
        await column.bench("fill", 1, max(LOOKUP_SAMPLES))
    async for number, column in turns(columns, 5):
        await column.start_generating(100 + number, 1, 100)
        for blocks, hit in cases:
            await column.bench("sample_lookups", 1, blocks, hit, LOOKUP_SAMPLES[blocks])
            samples[blocks, hit][column.name] += await taken(column)
        await column.stop_generating()
    rows = []
    for (blocks, hit), of_case in samples.items():
        targets = {ON_MOONCAKE: 3.0, ON_MEMORY: 20.0} if blocks == 8192 else {}
        name = f"lookup of {blocks:,} blocks, {'hits' if hit else 'misses'}"
        rows.append(Row(name, "ms", of_case, targets=targets))
    return rows, []


async def taken(column: Column) -> list[float]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        samples, waiting = await column.bench("results")
        if waiting == 0:
            return samples
        await asyncio.sleep(0.02)
    raise RuntimeError(f"{column.name}: lookups were not answered within a minute")


async def step(columns: Columns) -> Results:
    """Sum over the scheduler's methods, a step of decoding."""
    samples = {running: empty() for running in STEP_REQUESTS}
    admitting = empty()
    async for number, column in turns(columns, 3):
        for running in STEP_REQUESTS:
            await column.start_generating(1000 * (number + 1) + running, running, 100)
            await column.bench("take_steps")
            steps: list[float] = []
            deadline = time.monotonic() + 60
            while len(steps) < STEP_COUNT and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
                new = await column.bench("take_steps")
                steps += [took_ms for requests, took_ms in new if requests == running]
            samples[running][column.name] += steps
            if running == 1:
                admitting[column.name] += await admit(column, 100 * number)
            await column.stop_generating()
    rows = [
        Row(f"scheduler's side of a step, {running} running", "ms", of_case)
        for running, of_case in samples.items()
    ]
    rows[-1].targets = {ON_MOONCAKE: 1.0, ON_MEMORY: 1.0}
    return [*rows, Row("scheduler's side of admitting a request", "ms", admitting)], []


async def admit(column: Column, seed: int) -> list[float]:
    """New requests, one after the other: lookup and all."""
    took_ms = []
    for number in range(ADMITTED):
        await column.bench("take_admitting_ms")
        await column.ask(prompt_of(500_000 + seed + number, 100))
        took_ms.append(await column.bench("take_admitting_ms"))
    return took_ms


async def reset(columns: Columns) -> Results:
    """Until the answer, while a request is decoded."""
    samples = {keys: empty() for keys in RESET_ROUNDS}
    seed = 1_000_000
    for keys, rounds in RESET_ROUNDS.items():
        async for _, column in turns(columns, rounds):
            seed += 1
            await column.bench("fill", seed, keys)
            await column.start_generating(seed, 1, 100)
            took_ms, done = await column.bench("reset_ms")
            await column.stop_generating()
            if not done:
                raise RuntimeError(f"{column.name}: a reset of {keys} keys failed")
            samples[keys][column.name].append(took_ms)
    rows = [Row(f"reset, {keys:,} keys", "ms", of_case) for keys, of_case in samples.items()]
    flat = [
        Flat(
            f"reset, {column}: largest p50 / smallest",
            [of_case[column] for of_case in samples.values()],
            None if column == PEER else 2.0,
        )
        for column in COLUMNS
    ]
    return rows, flat


# --- on a real model ---


async def ttft(columns: Columns) -> Results:
    """A prompt's first time, and again when vLLM's own cache has lost it; another is decoded."""
    cold, external = empty(), empty()
    async for number, column in turns(columns, 8):
        block = column.shape.block
        prompt = prompt_of(50 + number, TTFT_BLOCKS * block + 4)
        await column.start_generating(9000 + number, 1, 20)
        before = await column.saved_so_far()
        first_ms, found = await column.ask(prompt)
        assert found == 0, f"{column.name}: {found} tokens found of a new prompt"
        await column.saved(before + TTFT_BLOCKS)
        await asyncio.sleep(0.2)
        await column.bench("forget_local_cache")
        again_ms, found = await column.ask(prompt)
        assert found == TTFT_BLOCKS * block, f"{column.name}: {found} tokens found"
        await column.stop_generating()
        cold[column.name].append(first_ms)
        external[column.name].append(again_ms)
    tokens = TTFT_BLOCKS * block
    targets = {ON_MOONCAKE: 0.95, ON_MEMORY: 0.95}
    return [
        Row(f"first token, {tokens} tokens computed", "ms", cold, targets=targets),
        Row(f"first token, {tokens} tokens loaded", "ms", external, targets=targets),
    ], []


# --- on the wide model ---


async def save(columns: Columns) -> Results:
    """A burst of prompts with some tokens of answer each, until the store has all their blocks."""
    rate = empty()
    async for number, column in turns(columns, SAVE_ROUNDS):
        prompts = [
            prompt_of(SAVE_PROMPTS * number + i + 1, column.shape.block + 1)
            for i in range(SAVE_PROMPTS)
        ]
        before = await column.saved_so_far()
        begin = time.perf_counter()
        await asyncio.gather(*[column.ask(prompt, max_tokens=8) for prompt in prompts])
        await column.saved(before + SAVE_PROMPTS)
        took_s = time.perf_counter() - begin
        if number > 0:  # the first touches memory for the first time
            saved_bytes = SAVE_PROMPTS * await column.bench("block_bytes")
            rate[column.name].append(saved_bytes / took_s / 1e6)
        await column.bench("forget_local_cache")
        for prompt in (prompts[0], prompts[-1]):
            found = (await column.ask(prompt))[1]
            assert found == column.shape.block, f"{column.name}: not saved, {found} tokens found"
    targets = {ON_MOONCAKE: 0.95, ON_MEMORY: 0.95}
    name = f"saved while generating, {SAVE_PROMPTS} prompts at once"
    return [Row(name, "MB/s", rate, more_is_better=True, targets=targets)], []


Section = Callable[[Columns], Awaitable[Results]]
SECTIONS: dict[str, tuple[str, Section]] = {  # and the model it runs on
    "lookup": ("tiny", lookup),
    "step": ("tiny", step),
    "reset": ("tiny", reset),
    "ttft": ("real", ttft),
    "save": ("wide", save),
}
