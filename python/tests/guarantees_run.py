"""Every flow of examples/rl_flows.py with the connector and with its fence taken out, each answer
compared with a vLLM that has no connector and was started on these weights' files. Told as JSON:
guarantees_run.py MODEL_FOLDER.

A module of its own because vLLM's processes import it.
"""

import asyncio
import json
import sys

import rl_engine
import rl_flows
from rl_engine import Engine, Observation
from rl_flows import FLOWS

CONNECTORS = {
    "fenced": ("NewmoonConnector", "newmoon.vllm"),
    "unfenced": ("UnfencedConnector", "unfenced_connector"),
}


def transfer_config(connector: str, module: str) -> dict:
    return {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "store": "memory",
            "store_bytes": 1 << 30,
            "lookup_timeout_s": 30.0,  # a busy machine is no reason for a miss
            "reading_rpcs": rl_engine.READING_RPCS,
        },
    }


async def run_all(engine: Engine) -> dict[str, dict[str, Observation]]:
    try:
        return {
            flow.name: await rl_flows.run_flow(engine, flow, number)
            for number, flow in enumerate(FLOWS)
        }
    finally:
        engine.llm.shutdown()


async def main(model: str) -> None:
    rl_engine.make_model(model)
    seen = {
        kind: await run_all(Engine(model, transfer_config(*connector)))
        for kind, connector in CONNECTORS.items()
    }
    every = [one for flows in seen.values() for named in flows.values() for one in named.values()]
    differences = iter(await rl_flows.expect_all(model, every))
    told = {
        kind: {
            flow: {
                name: {
                    "weights": one.weights,
                    "cached": one.cached,
                    "external": one.external,
                    "difference": next(differences),
                }
                for name, one in observations.items()
            }
            for flow, observations in flows.items()
        }
        for kind, flows in seen.items()
    }
    print("SEEN " + json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
