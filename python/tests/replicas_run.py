"""Two engines on one Mooncake master while new weights roll over them, one engine after the other,
under requests. Told as JSON: replicas_run.py MODEL_FOLDER LOG_FOLDER.

A module of its own because vLLM's processes import it.
"""

import asyncio
import dataclasses
import itertools
import json
import pathlib
import sys
from typing import Any

import rl_engine
import rl_flows
from mooncake_master import MooncakeMaster
from rl_engine import FIRST, WEIGHTS, Engine, Observation, prompt_of

CASES = {
    "digest": ("NewmoonConnector", "newmoon.vllm", "digest"),
    "unique": ("NewmoonConnector", "newmoon.vllm", "unique"),
    "unfenced": ("UnfencedConnector", "unfenced_connector", "digest"),
}
PROMPTS = 5  # that both engines are asked again and again: more than vLLM's own cache holds
TOKENS = 24
PROBE = 100  # the first of the prompts that one engine is asked first, and then the other
ANSWERS = 3  # of each engine, between two updates


def transfer_config(case: str, store: str, number: int) -> dict[str, Any]:
    connector, module, identity = CASES[case]
    return {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "engine_id": f"replica-{number}",
        "kv_connector_extra_config": {
            "store": store,
            "namespace": case,
            "identity": identity,
            "lookup_timeout_s": 30.0,  # a busy machine is no reason for a miss
            "store_timeout_s": 10.0,
            "load_timeout_s": 60.0,
            "reading_rpcs": rl_engine.READING_RPCS,
        },
    }


class Replica:
    """An engine and its client, who asks one prompt behind the other."""

    def __init__(self, model: str, case: str, store: str, number: int):
        self.engine = Engine(model, transfer_config(case, store, number))
        self.number = number
        self.seen: list[Observation] = []
        self.answered = self.aborted = 0
        self.stopped = False
        self._gate = asyncio.Event()
        self._gate.set()

    async def serve(self) -> None:
        for number in itertools.count(self.number):
            if self.stopped:
                return
            await self.answer(prompt_of(number % PROMPTS))
            self.answered += 1

    async def answer(self, prompt: list[int]) -> None:
        """What an update aborts is sent again with what it had, as verl does."""
        await self._gate.wait()
        pieces, ended = await self._ask_in_pieces(prompt)
        self.seen += pieces
        if ended == "abort":
            self.aborted += 1
            await self.answer(prompt + [token for piece in pieces for token in piece.tokens])

    async def _ask_in_pieces(self, prompt: list[int]) -> tuple[list[Observation], str]:
        """One of the weights at a time that the tokens came from."""
        pieces: list[Observation] = []
        told = 0
        async for output in self.engine._generate(prompt, TOKENS):
            completion = output.outputs[0]
            tokens, logprobs = list(completion.token_ids), rl_engine.logprobs_of(completion)
            if len(tokens) > told:
                if not pieces or pieces[-1].weights != self.engine.weights:
                    pieces.append(Observation(self.engine.weights, prompt + tokens[:told], [], []))
                pieces[-1].tokens += tokens[told:]
                pieces[-1].logprobs += logprobs[told:]
                told = len(tokens)
        if pieces:
            pieces[0].cached = output.num_cached_tokens or 0
        return pieces, completion.finish_reason

    async def update(self, weights: float) -> None:
        """As verl: no request is sent before it has ended."""
        self._gate.clear()
        await rl_flows.verl_checkpoint_engine(self.engine, weights)
        self._gate.set()

    async def probe(self, seed: int) -> Observation:
        seen = await self.engine.ask(prompt_of(seed))
        self.seen.append(seen)
        return seen


async def some_answers(replicas: list[Replica]) -> None:
    wanted = [replica.answered + ANSWERS for replica in replicas]
    while any(r.answered < count for r, count in zip(replicas, wanted, strict=True)):
        await asyncio.sleep(0.01)


async def roll(replicas: list[Replica], weights: float, seed: int) -> dict[str, int]:
    """What the probes found: tokens of a prompt that only the first engine was asked before."""
    first, second = replicas
    await some_answers(replicas)
    await first.update(weights)
    await first.probe(seed)
    await first.engine.wait_for_saves()
    early = await second.probe(seed)  # the other weights still
    await some_answers(replicas)
    await second.update(weights)
    late = await second.probe(seed)
    await some_answers(replicas)
    return {"early": early.cached, "late": late.cached}


async def run(model: str, case: str, store: str) -> dict[str, Any]:
    replicas = [Replica(model, case, store, number) for number in range(2)]
    serving = [asyncio.create_task(replica.serve()) for replica in replicas]
    try:
        found = [
            await roll(replicas, weights, PROBE + place)
            for place, weights in enumerate((WEIGHTS[0], FIRST))
        ]
        for replica in replicas:
            replica.stopped = True
        await asyncio.gather(*serving)
        stats = [await replica.engine.rpc("stats") for replica in replicas]
    finally:
        for replica in replicas:
            replica.engine.llm.shutdown()
    return {
        "probes": found,
        "loaded": [one["loaded_blocks"] for one in stats],
        "aborted": sum(replica.aborted for replica in replicas),
        "seen": [one for replica in replicas for one in replica.seen],
        "of": [replica.number for replica in replicas for _ in replica.seen],
    }


async def main(model: str, logs: str) -> None:
    rl_engine.make_model(model)
    told = {}
    for case in CASES:
        with MooncakeMaster(pathlib.Path(logs, f"master-{case}.log")) as master:
            store = master.url(global_segment_size="256MB", local_buffer_size="64MB")
            told[case] = await run(model, case, store)
    every = [one for case in told.values() for one in case["seen"]]
    differences = iter(await rl_flows.expect_all(model, every))
    for case in told.values():
        case["seen"] = [
            {"replica": of, "difference": next(differences)}
            | {key: dataclasses.asdict(one)[key] for key in ("weights", "cached")}
            for of, one in zip(case.pop("of"), case["seen"], strict=True)
        ]
    print("FLOW " + json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
