"""Adapters in real vLLM, told as JSON: vllm_adapters_flow.py MODEL FOLDER with|without.

The same name and path, another adapter each time: under another id, written again under the same
id, loaded by RPC, and loaded in place while a request for it runs. The last also without the
connector.
"""

import pathlib
import sys

from tiny_adapter import write_adapter
from vllm_flow import BLOCK, Flow, ours, prompt_of

ACROSS_TOKENS = 200  # of a request that an adapter is loaded under: it fills a block of its own


def main(model: str, folder: str, connector: str) -> None:
    flow = Flow(
        model, ours() if connector == "with" else None,
        enable_lora=True, max_loras=1, max_cpu_loras=1, max_lora_rank=8,
    )  # fmt: skip
    if flow.with_connector:
        load_anew(flow, folder)
    load_in_place(flow, folder)
    flow.end()


def load_anew(flow: Flow, folder: str) -> None:
    from vllm.lora.request import LoRARequest

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


def load_in_place(flow: Flow, folder: str) -> None:
    """As SkyRL updates one of several policies: nothing is paused, nothing is reset."""
    from vllm.lora.request import LoRARequest

    path, fresh = pathlib.Path(folder, "policy"), pathlib.Path(folder, "fresh policy")
    write_adapter(path, 5)
    policy = LoRARequest("policy", 20, str(path))
    flow.ask("five", adapter=policy)
    flow.send(prompt_of(1), policy, ACROSS_TOKENS)
    for _ in range(8):
        flow.llm.llm_engine.step()
    write_adapter(path, 6)
    policy = LoRARequest("policy", 20, str(path), load_inplace=True)
    flow.llm.llm_engine.add_lora(policy)
    flow.receive("across")
    flow.ask("six", adapter=policy)  # the server sends it so from now on
    left = prompt_of(1) + flow.steps["across"]["tokens"][:BLOCK]
    flow.ask("left", prompt=left, adapter=policy)

    write_adapter(fresh, 6)
    policy = LoRARequest("fresh policy", 21, str(fresh))
    flow.ask("fresh six", adapter=policy)
    flow.ask("fresh left", prompt=left, adapter=policy)
    flow.send(prompt_of(1), policy, ACROSS_TOKENS)
    flow.receive("fresh across")


if __name__ == "__main__":
    main(*sys.argv[1:])
