"""One run of real vLLM on CPU, told as JSON: vllm_flow.py MODEL with|without|ranks.

The same requests and weight changes with the connector and without it, so that
test_vllm_engine.py can compare them; and a short run on several ranks. A module of its own
because vLLM's processes import it.
"""

import json
import os
import sys

from processes import wait_until

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM reserves one more for a connector, and sums differ with the number of threads.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
}

BLOCK = 128  # tokens; vLLM's on CPU
KV_BLOCKS = 20  # so few that other requests push a prompt out of vLLM's own cache
PROMPT_TOKENS = 6 * BLOCK + 4
RANKS = 3  # the model has 9 heads
CONNECTOR = {
    "kv_connector": "NewmoonConnector",
    "kv_connector_module_path": "newmoon.vllm",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "store": "memory",
        "store_bytes": 1 << 30,
        "reading_rpcs": ["connector_stats", "scale_norms_unseen"],
    },
}


def prompt_of(seed: int) -> list[int]:
    return [(i * 7919 + seed * 104729) % 40000 + 100 for i in range(PROMPT_TOKENS)]


def stats_of(worker) -> dict[str, int]:
    return worker._core.stats() | {"unfinished_saves": worker._core.unfinished_saves}


class WorkerExtension:
    """Called in the worker through collective_rpc."""

    def scale_norms(self, factor: float) -> int:
        """Really other weights: linear ones are prepacked on CPU, norms are not."""
        import torch

        changed = 0
        with torch.no_grad():
            for name, parameter in self.model_runner.model.named_parameters():
                if "input_layernorm" not in name:
                    continue
                if not hasattr(parameter, "newmoon_original"):
                    parameter.newmoon_original = parameter.detach().clone()
                ramp = torch.linspace(1.0, factor, parameter.numel(), dtype=parameter.dtype)
                parameter.copy_(parameter.newmoon_original * ramp)
                changed += 1
        return changed

    def scale_norms_unseen(self, factor: float) -> int:
        """The same, as if it wrote nothing: only the resets can make it right."""
        return self.scale_norms(factor)

    def connector_stats(self) -> dict[str, int]:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return stats_of(get_kv_transfer_group()._worker)


class Flow:
    def __init__(
        self,
        model: str,
        with_connector: bool,
        ranks: int = 1,
        connector: dict = CONNECTOR,
        extension: str = "vllm_flow.WorkerExtension",
        **options,
    ):
        if ranks > 1:
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join("01"[r % 2] for r in range(ranks))
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype="bfloat16",
            max_model_len=1024,
            enforce_eager=True,
            tensor_parallel_size=ranks,
            disable_log_stats=False,
            num_gpu_blocks_override=KV_BLOCKS,
            worker_extension_cls=extension,
            kv_transfer_config=connector if with_connector else None,
            **options,
        )
        self.with_connector = with_connector
        self.steps: dict[str, dict] = {}
        self.before: dict[str, int] = {}  # metrics as the last request was sent

    def ask(self, name: str, seed: int = 0, adapter=None, prompt: list[int] | None = None) -> None:
        """One request; what was found and what came out, under `name`."""
        self.send(prompt or prompt_of(seed), adapter)
        self.receive(name)

    def send(self, prompt: list[int], adapter=None, tokens: int = 8) -> None:
        from vllm import SamplingParams

        self.before = self.metrics()
        self.llm.enqueue(
            {"prompt_token_ids": prompt},
            SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=1),
            use_tqdm=False,
            lora_request=adapter,
        )

    def receive(self, name: str) -> None:
        (output,) = self.llm.wait_for_completion(use_tqdm=False)
        completion = output.outputs[0]
        self.steps[name] = {
            "cached": output.num_cached_tokens,
            "ended": completion.finish_reason,
            "tokens": list(completion.token_ids),
            "logprobs": [
                step[token].logprob
                for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
            ],
            **{key: value - self.before[key] for key, value in self.metrics().items()},
        }

    def metrics(self) -> dict[str, int]:
        names = {"vllm:prefix_cache_hits": "local", "vllm:external_prefix_cache_hits": "external"}
        found = {metric.name: metric.value for metric in self.llm.get_metrics() if metric.name in names}
        return {short: found.get(name, 0) for name, short in names.items()}

    def push_out(self) -> None:
        """Other prompts take the blocks of vLLM's own cache, once all is saved."""
        if self.with_connector:
            self.wait_for_saves()
        for seed in (1, 2, 3):
            self.ask(f"other {seed}", seed)

    def wait_for_saves(self) -> None:
        wait_until(
            lambda: not any(
                rank["unfinished_saves"] for rank in self.llm.collective_rpc("connector_stats")
            ),
            "saves were to end",
        )

    def change_weights(self, factor: float, rpc: str = "scale_norms_unseen") -> None:
        assert self.llm.collective_rpc(rpc, args=(factor,))[0] > 0

    def stats(self, name: str) -> None:
        self.wait_for_saves()
        self.steps[name] = self.llm.collective_rpc("connector_stats")[0]

    def reset(self, name: str, **arguments: bool) -> None:
        self.steps[name] = {"answer": self.llm.reset_prefix_cache(**arguments)}


def run(flow: Flow) -> dict[str, dict]:
    flow.ask("A cold")
    flow.ask("A local")
    if flow.with_connector:
        flow.push_out()
        flow.ask("A external")
        flow.reset("reset A", reset_connector=True)
        flow.ask("A after reset")
    # Other weights, and a reset of both tiers.
    flow.change_weights(1.5)
    flow.reset("reset B", reset_connector=True)
    flow.ask("B cold")
    flow.ask("B local")
    if flow.with_connector:
        flow.push_out()
        flow.ask("B external")
    # Other weights again, and a local reset alone.
    flow.change_weights(2.0)
    flow.reset("reset C")
    flow.ask("C cold")
    # Other weights once more, through a method of the framework's own, and no reset: the
    # connector must notice. Without it vLLM would serve stale KV of its own cache.
    if flow.with_connector:
        flow.stats("stats C")
    flow.change_weights(2.5, "scale_norms")
    if not flow.with_connector:
        flow.reset("reset D")
    flow.ask("D cold")
    if flow.with_connector:
        flow.stats("stats D")
    return flow.steps


def run_on_ranks(flow: Flow) -> dict[str, dict]:
    flow.ask("A cold")
    flow.ask("A local")
    flow.push_out()
    flow.ask("A external")
    flow.reset("reset A", reset_connector=True)
    flow.ask("A after reset")
    flow.steps["ranks"] = flow.llm.collective_rpc("connector_stats")
    return flow.steps


if __name__ == "__main__":
    model, mode = sys.argv[1:]
    if mode == "ranks":
        told = run_on_ranks(Flow(model, True, RANKS))
    else:
        told = run(Flow(model, mode == "with"))
    print("FLOW " + json.dumps(told), flush=True)
