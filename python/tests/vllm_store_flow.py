"""Runs of real vLLM on stores that outlive it, told as JSON: vllm_store_flow.py MODEL RUN STORE.

Whoever calls has the store running; the run on Mooncake kills its master and starts it again, and
STORE is the folder of its log then.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import vllm_flow
from mooncake_master import MooncakeMaster
from processes import binary, wait_until
from vllm_flow import Flow, ours

NAMESPACE = "run-7"
B, C, E, F = 1.5, 2.0, 1.3, 1.7  # other weights, as factors of norms; 1.0 is what was loaded


class WorkerExtension(vllm_flow.WorkerExtension):
    def load_norms_unseen(self, factor: float) -> int:
        """As a framework that talks to its workers past the engine: through the model."""
        import torch

        model = self.model_runner.get_model()
        norms = {name: p for name, p in model.named_parameters() if "input_layernorm" in name}
        for parameter in norms.values():
            if not hasattr(parameter, "newmoon_original"):
                parameter.newmoon_original = parameter.detach().clone()
        scaled = []
        for name, parameter in norms.items():
            ramp = torch.linspace(1.0, factor, parameter.numel(), dtype=parameter.dtype)
            scaled.append((name, parameter.newmoon_original * ramp))
        model.load_weights(scaled)
        return len(scaled)


def start(model: str, store: str, identity: str, engine_id: str, **options) -> Flow:
    named = {"namespace": NAMESPACE, "identity": identity}
    connector = ours("load_norms_unseen", store=store, **named) | {"engine_id": engine_id}
    del connector["kv_connector_module_path"]  # it is known by the entry point
    return Flow(model, connector, extension="vllm_store_flow.WorkerExtension", **options)


def run_named(flow: Flow, store: str) -> None:
    """Weights A, B, A, B again, and C behind the engine's back."""
    flow.ask("A cold")
    flow.ask("A local")
    flow.wait_for_saves()
    flow.change_weights(B, "scale_norms")
    flow.ask("B cold")
    flow.ask("B local")
    flow.wait_for_saves()
    flow.change_weights(1.0, "scale_norms")
    flow.ask("A back")
    flow.change_weights(B, "load_norms_unseen")
    flow.ask("B unseen")
    flow.change_weights(C, "load_norms_unseen")
    flow.ask("C unseen")
    flow.steps["ctl"] = {word: newmoon_ctl(flow, word) for word in ("ping", "stats", "scopes")}
    flow.steps["purge in use"] = newmoon_purge(store)
    flow.stats("stats")


def run_again(flow: Flow, store: str) -> None:
    """Another engine, on a store that run_named() left."""
    flow.ask("A first")
    flow.change_weights(B, "scale_norms")
    flow.ask("B first")
    flow.stats("stats")


def run_dummy(flow: Flow, store: str) -> None:
    """An engine of random weights, by the name of a model whose blocks are there."""
    flow.ask("random")
    flow.ask("random, local")
    flow.wait_for_saves()


def run_dummy_again(flow: Flow, store: str) -> None:
    """vLLM's random weights are the same each time, so others are made of them; and they again."""
    flow.change_weights(B, "scale_norms")
    flow.ask("random, other")
    flow.change_weights(1.0, "scale_norms")
    flow.ask("random, same")


def run_fenced(flow: Flow, store: str) -> None:
    """Weights that two ranks write where nobody sees it, and `newmoon ctl fence` on each of them."""
    flow.wait_for_stores()
    flow.ask("A cold")
    flow.ask("A local")
    flow.push_out()
    flow.ask("A external")
    for name, factor, fenced in (("B", B, (0, 1)), ("A back", 1.0, (1, 0)), ("C", C, (1,)), ("D", 2.5, (0,))):
        flow.wait_for_saves()
        flow.change_weights(factor)  # no RPC that is taken for one that writes
        flow.steps[f"fence {name}"] = {rank: newmoon_ctl(flow, "fence", rank) for rank in fenced}
        before = flow.llm.collective_rpc("connector_stats")
        flow.ask(name)
        after = flow.llm.collective_rpc("connector_stats")
        flow.steps[name]["loaded"] = [
            now["loaded_blocks"] - then["loaded_blocks"]
            for then, now in zip(before, after, strict=True)
        ]
        flow.ask(f"{name}, local")
    flow.reset("reset", reset_connector=True)
    flow.ask("D cold")


def run_unseen(flow: Flow, store: str) -> None:
    """Weights E, and F where nobody sees it written: a request runs with F before the reset."""
    flow.change_weights(E, "scale_norms")
    flow.ask("E cold")
    flow.ask("E local")
    flow.wait_for_saves()
    (named,) = (scope["scope"] for scope in scopes_of(store) if scope["in_use_by"])
    flow.change_weights(F)
    flow.ask("F by the name of E", seed=3)
    flow.wait_for_saves()
    flow.reset("reset", reset_connector=True)
    flow.ask("F cold", seed=3)
    flow.ask("F local", seed=3)
    flow.wait_for_saves()
    wait_until(
        lambda: named not in [scope["scope"] for scope in scopes_of(store)],
        "the scope of E was to be emptied",
    )
    for name, factor in (("E back", E), ("F back", F)):
        flow.change_weights(factor, "scale_norms")
        flow.ask(name, seed=3)


def run_killed(flow: Flow, store: str) -> None:
    """All of the engine at once, with what it holds."""
    flow.ask("first")
    flow.wait_for_saves()
    for pid in (*flow.llm.collective_rpc("pid"), flow.engine_pid()):
        os.kill(pid, signal.SIGKILL)


def run_mooncake(flow: Flow, master: MooncakeMaster) -> None:
    flow.ask("A cold")
    flow.ask("A local")
    flow.push_out()
    flow.ask("A external")
    flow.reset("reset", reset_connector=True)
    flow.ask("A after reset")
    flow.change_weights(B, "scale_norms")
    flow.change_weights(1.0, "scale_norms")
    flow.ask("A back")  # without a label
    label_weights(flow)
    flow.push_out()
    master.kill()
    flow.ask("A dead")
    flow.ask("A dead, other", seed=5)
    flow.reset("reset dead", reset_connector=True)
    flow.ask("A dead after reset")
    master.start()
    deadline = time.monotonic() + 120
    for attempt in range(100):
        flow.ask("other", seed=10 + attempt)
        flow.push_out()
        flow.ask("A returned")
        if flow.steps["A returned"]["external"] or time.monotonic() > deadline:
            break
        time.sleep(1)
    flow.stats("stats")


def label_weights(flow: Flow) -> None:
    for name, factor, label in (
        ("step-1", B, "step-1"),
        ("step-2", C, "step-2"),
        ("step-1 back", B, "step-1"),
        ("step-1 unlabelled", B, None),
        ("A", 1.0, "step-0"),
    ):
        flow.change_weights(factor, "scale_norms")
        if label is not None:  # as finish_weight_update(weight_version) does
            flow.llm.llm_engine.set_weight_version(label)
        flow.ask(f"label {name}")
        flow.ask(f"label {name}, local")
        flow.wait_for_saves()


def endpoint(flow: Flow, rank: int = 0) -> str:
    setup = flow.llm.llm_engine.vllm_config.kv_transfer_config
    folder = pathlib.Path(os.environ["VLLM_RPC_BASE_PATH"])
    (socket,) = folder.glob(f"newmoon-*/{setup.engine_id}*-rank{rank}.sock")
    return f"ipc://{socket}"


def newmoon(*command: str) -> dict:
    done = subprocess.run([binary(), *command], capture_output=True, text=True, timeout=60)
    return {"code": done.returncode, "out": done.stdout, "error": done.stderr}


def newmoon_ctl(flow: Flow, word: str, rank: int = 0) -> dict:
    json_flag = ["--json"] if word in ("stats", "scopes") else []
    return newmoon("ctl", "--endpoint", endpoint(flow, rank), word, *json_flag)


def scopes_of(store: str) -> list[dict]:
    listed = newmoon("scopes", "--store", store, "--json")
    return json.loads(listed["out"])["scopes"]


def newmoon_purge(store: str) -> dict:
    return newmoon("purge", "--store", store, "--namespace", NAMESPACE, "--yes")


if __name__ == "__main__":
    model, mode, store = sys.argv[1:]
    if mode == "mooncake":
        with MooncakeMaster(pathlib.Path(store, "master.log")) as master:
            url = master.url(global_segment_size="512MB", local_buffer_size="128MB")
            flow = start(model, url, "trust_weight_version", "engine-1")
            run_mooncake(flow, master)
    else:
        run = {
            "named": run_named,
            "again": run_again,
            "dummy": run_dummy,
            "dummy-again": run_dummy_again,
            "fenced": run_fenced,
            "unseen": run_unseen,
            "killed": run_killed,
        }[mode]
        load_format = "dummy" if mode.startswith("dummy") else "auto"
        ranks = 2 if mode == "fenced" else 1
        flow = start(model, store, "digest", f"engine-{mode}", load_format=load_format, ranks=ranks)
        run(flow, store)
    flow.end(is_dead=mode == "killed")
