"""Adapters in real vLLM, told as JSON: vllm_adapters_flow.py MODEL FOLDER.

The same name and path, another adapter each time: under another id, written again under the same
id, and loaded by RPC.
"""

import json
import pathlib
import sys

from tiny_adapter import write_adapter
from vllm_failures import ours
from vllm_flow import Flow


def main(model: str, folder: str) -> dict[str, dict]:
    from vllm.lora.request import LoRARequest

    flow = Flow(
        model, True, connector=ours(), extension="vllm_failures.WorkerExtension",
        enable_lora=True, max_loras=1, max_cpu_loras=1, max_lora_rank=8,
    )  # fmt: skip
    path = pathlib.Path(folder, "adapter")

    def adapter(number: int) -> LoRARequest:
        return LoRARequest("name", number, str(path))

    flow.ask("base")
    write_adapter(path, 1)
    flow.ask("one", adapter=adapter(1))
    flow.ask("one again", adapter=adapter(1))
    flow.stats("stats")

    write_adapter(path, 2)
    flow.ask("two", adapter=adapter(2))
    flow.ask("two again", adapter=adapter(2))

    # Written again under the same id: vLLM loads it once another one has pushed it out.
    write_adapter(path, 3)
    flow.ask("not loaded yet", adapter=adapter(2))
    flow.ask("pushes it out", seed=9, adapter=LoRARequest("other", 7, str(path)))
    flow.ask("three", adapter=adapter(2))

    write_adapter(path, 4)
    flow.llm.llm_engine.remove_lora(2)
    flow.llm.llm_engine.add_lora(adapter(4))
    flow.ask("four", adapter=adapter(4))

    # Each of them computed: found in no cache, since its name and path never ran here.
    for seed, name in enumerate(("one", "two", "three", "four"), 1):
        fresh = pathlib.Path(folder, f"fresh{seed}")
        write_adapter(fresh, seed)
        flow.ask(f"fresh {name}", adapter=LoRARequest(f"fresh{seed}", 10 + seed, str(fresh)))
    return flow.steps


if __name__ == "__main__":
    print("FLOW " + json.dumps(main(*sys.argv[1:])), flush=True)
