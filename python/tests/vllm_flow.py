"""One run of real vLLM on CPU, told as JSON: vllm_flow.py MODEL with|without|RANKS [STORE].

The same requests and weight changes with the connector and without it, so that
test_vllm_engine.py can compare them; and a short run on several ranks, with and without. A module
of its own because vLLM's processes import it.
"""

import json
import os
import pathlib
import sys
import time

from processes import wait_until, wait_until_asleep

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM reserves one more for a connector, and sums differ with the number of threads.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
}

# Without AVX-512 vLLM's kernels take 2.6 times as long for BF16 as for FP32.
DTYPE = "bfloat16" if "avx512f" in pathlib.Path("/proc/cpuinfo").read_text() else "float32"
BLOCK = 128  # tokens; vLLM's on CPU
KV_BLOCKS = 20  # so few that other requests push a prompt out of vLLM's own cache
PROMPT_TOKENS = 6 * BLOCK + 4
# So long that a busy machine is taken for no dead store or rank.
PATIENT = {"store_timeout_s": 10, "lookup_timeout_s": 20}
READING_RPCS = ["connector_stats", "pid", "scale_norms_unseen"]


def ours(*rpcs: str, **options) -> dict:
    """`rpcs`: those of the flow's own that write no weights."""
    reading = {"reading_rpcs": [*READING_RPCS, *rpcs]}
    return {
        "kv_connector": "NewmoonConnector",
        "kv_connector_module_path": "newmoon.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": PATIENT | reading | options,
    }


def connector_on(store: str) -> dict:
    return ours(store=store, store_bytes=1 << 30)


def prompt_of(seed: int) -> list[int]:
    return [(i * 7919 + seed * 104729) % 40000 + 100 for i in range(PROMPT_TOKENS)]


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

    def connector_core(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker._core

    def connector_stats(self) -> dict[str, int]:
        core = self.connector_core()
        return core.stats() | {"unfinished_saves": core.unfinished_saves}

    def pid(self) -> int:
        return os.getpid()


class Flow:
    def __init__(
        self,
        model: str,
        connector: dict | None,
        ranks: int = 1,
        extension: str = "vllm_flow.WorkerExtension",
        **options,
    ):
        if ranks > 1:
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join("01"[r % 2] for r in range(ranks))
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype=DTYPE,
            max_model_len=1024,
            enforce_eager=True,
            tensor_parallel_size=ranks,
            disable_log_stats=False,
            worker_extension_cls=extension,
            kv_transfer_config=connector,
            **({"num_gpu_blocks_override": KV_BLOCKS} | options),
        )
        self.with_connector = connector is not None
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

    def wait_for_stores(self) -> None:
        """A busy machine may take some seconds to open one on every rank; until then its rank saves
        nothing."""
        deadline = time.monotonic() + 60
        for seed in range(10, 1000):
            self.ask("first", seed)
            self.wait_for_saves()
            ranks = self.llm.collective_rpc("connector_stats")
            if all(rank["saved_blocks"] for rank in ranks) or time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def close(self) -> None:
        """As it ends by itself, but with more than vLLM's 5 s, after which it kills its processes, and
        not before the engine sleeps: a SIGTERM that comes on its way to wait for work is not looked
        at until there is some. Python checks for signals before that wait, not at its beginning."""
        wait_until_asleep(self.engine_pid())
        self.llm.llm_engine.engine_core.shutdown(timeout=60)

    def end(self, is_dead: bool = False) -> None:
        """The last thing that a run does. `is_dead`: its engine, which has nothing left to shut down,
        but vLLM's client would try as it ends."""
        if not is_dead:
            self.close()
        print("FLOW " + json.dumps(self.steps), flush=True)
        if is_dead:
            os._exit(0)

    def engine_pid(self) -> int:
        (process,) = self.llm.llm_engine.engine_core.resources.engine_manager.processes
        return process.pid

    def change_weights(self, factor: float, rpc: str = "scale_norms_unseen") -> None:
        assert self.llm.collective_rpc(rpc, args=(factor,))[0] > 0

    def rank_stats(self) -> dict[str, int]:
        return self.llm.collective_rpc("connector_stats")[0]

    def stats(self, name: str) -> None:
        self.wait_for_saves()
        self.steps[name] = self.rank_stats()

    def resets(self, name: str) -> None:
        """Of all resets so far, as vLLM's metrics have them: told with the step after a reset."""
        counted = {metric.name: metric.value for metric in self.llm.get_metrics() if "_resets" in metric.name}
        self.steps[name] = {key.removeprefix("vllm:newmoon_"): counted[key] for key in counted}

    def reset(self, name: str, **arguments: bool) -> None:
        self.steps[name] = {"answer": self.llm.reset_prefix_cache(**arguments)}


def run(flow: Flow) -> None:
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


def run_on_ranks(flow: Flow) -> None:
    if flow.with_connector:
        flow.wait_for_stores()
    flow.ask("A cold")
    flow.ask("A local")
    if not flow.with_connector:
        return
    flow.push_out()
    flow.ask("A external")
    flow.reset("reset A", reset_connector=True)
    flow.ask("A after reset")
    flow.steps["ranks"] = flow.llm.collective_rpc("connector_stats")


if __name__ == "__main__":
    model, mode, *store = sys.argv[1:]
    connector = connector_on(*store) if store else None
    if mode in ("with", "without"):
        flow = Flow(model, connector)
        run(flow)
    else:
        flow = Flow(model, connector, int(mode))
        run_on_ranks(flow)
    flow.end()
