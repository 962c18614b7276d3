"""Real vLLM while stores and ranks die, told as JSON: vllm_failures.py MODEL MODE ...

multi ENDPOINT PID, store ENDPOINT PID: ours over a store server, inside MultiConnector or alone;
the server is stopped and killed. ranks: two ranks, one of which is stopped and killed; ranks-in-a-step: killed in a
step.
"""

import os
import signal
import struct
import sys
import threading
import time

import vllm_flow
from processes import wait_until_halted
from vllm_flow import Flow, ours

RESET_TIMEOUT_S = 2
LOOKUP_TIMEOUT_S = 2  # of the runs with ranks, one of which is silent for longer


def multi(*connectors: dict) -> dict:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"connectors": list(connectors)},
    }


def count_loads(step: bytes) -> int:
    """Of a step's message: tag, epoch u64, writes u32 and u64 each, loads u32."""
    (writes,) = struct.unpack_from("<I", step, 9)
    return struct.unpack_from("<I", step, 13 + 8 * writes)[0]


class WorkerExtension(vllm_flow.WorkerExtension):
    def _sides(self) -> list:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        group = get_kv_transfer_group()
        return [one._worker for one in getattr(group, "_connectors", [group])]

    def connector_core(self):
        """Of the first of ours."""
        return self._sides()[0]._core

    def signal_at_load(self, pid: int, number: int) -> None:
        """Once: when the next load is to begin, after its lookup has found everything."""
        side = self._sides()[0]
        bind = side.bind

        def watched_bind(metadata):
            bind(metadata)
            if count_loads(metadata.message):
                del side.bind
                os.kill(pid, number)
                wait_until_halted(pid)

        side.bind = watched_bind

    def signal_at_save(self, pid: int, number: int) -> None:
        """Once: when the next step has computed what it saves."""
        side = self._sides()[0]
        wait_for_save = side.wait_for_save

        def watched_wait_for_save():
            del side.wait_for_save
            os.kill(pid, number)
            wait_until_halted(pid)
            wait_for_save()

        side.wait_for_save = watched_wait_for_save

    def count_write(self) -> None:
        """As `newmoon ctl fence` has the rank do."""
        self._sides()[0].note_weight_write()


class FailureFlow(Flow):
    def __init__(self, model: str, connector: dict, ranks: int = 1, **options):
        super().__init__(model, connector, ranks, "vllm_failures.WorkerExtension", **options)

    def signal_at_load(self, pid: int, number: int) -> None:
        self.llm.collective_rpc("signal_at_load", args=(pid, number))

    def ask_until_found(self, name: str) -> None:
        """A store that is back is found out by its next ping."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.ask(name)
            self.push_out()
            if self.steps[name]["external"]:
                return

    def timed_reset(self, name: str, seconds: float = 60) -> None:
        """A reset that hangs is given up, and told as such. One that meets an engine that ends gets no
        answer from vLLM's client, which waits without a deadline for what nobody is left to say."""
        told: dict = {"answer": "none"}
        begin = time.monotonic()

        def reset():
            try:
                told["answer"] = self.llm.reset_prefix_cache(reset_connector=True)
            except Exception as error:
                told["answer"] = type(error).__name__

        thread = threading.Thread(target=reset, daemon=True)
        thread.start()
        client = self.llm.llm_engine.engine_core.resources
        while thread.is_alive() and not client.engine_dead and time.monotonic() < begin + seconds:
            thread.join(0.01)
        told["seconds"] = time.monotonic() - begin
        thread.join(1)  # its error may be on its way
        if thread.is_alive() and client.engine_dead:
            told["answer"] = "none from an engine that ended"
        self.steps[name] = dict(told)


def run_with_store(flow: FailureFlow, server: int) -> None:
    flow.ask("cold")
    flow.ask("local")
    flow.push_out()
    flow.ask("external")
    flow.push_out()

    flow.signal_at_load(server, signal.SIGSTOP)
    flow.ask("stopped at the load")
    flow.push_out()
    flow.ask("stopped")
    flow.timed_reset("reset while stopped")
    os.kill(server, signal.SIGCONT)
    flow.push_out()
    flow.ask_until_found("again")

    flow.reset("reset", reset_connector=True)
    flow.ask("after reset")
    flow.push_out()
    flow.ask("after reset, external")
    flow.push_out()
    flow.signal_at_load(server, signal.SIGKILL)
    flow.ask("killed at the load")
    flow.push_out()
    flow.ask("killed")
    flow.timed_reset("reset while killed")
    flow.ask("after all")
    flow.resets("resets")
    flow.stats("stats")


def ask_a_silent_rank(flow: FailureFlow, pid: int) -> None:
    """It wrote weights, has counted that, and stops before the engine asks for it. vLLM's own cache
    holds the prompt, of the weights of before."""
    flow.change_weights(1.5)
    flow.llm.collective_rpc("count_write")
    os.kill(pid, signal.SIGSTOP)
    wait_until_halted(pid)
    flow.send(vllm_flow.prompt_of(0))
    time.sleep(LOOKUP_TIMEOUT_S + 1)  # the engine goes on meanwhile, and waits for the rank's step
    os.kill(pid, signal.SIGCONT)
    flow.receive("silent")
    flow.reset("reset silent", reset_connector=True)
    flow.ask("silent cold")


def run_with_ranks(flow: FailureFlow) -> None:
    flow.ask("cold")
    flow.ask("local")
    flow.push_out()
    flow.ask("external")
    flow.steps["ranks"] = flow.llm.collective_rpc("connector_stats")
    pids = flow.llm.collective_rpc("pid")
    ask_a_silent_rank(flow, pids[1])
    flow.change_weights(1.0)
    os.kill(pids[1], signal.SIGSTOP)
    flow.timed_reset("reset while stopped")
    os.kill(pids[1], signal.SIGCONT)
    flow.ask("after reset")
    flow.resets("resets")
    flow.push_out()
    flow.ask_until_found("again")
    os.kill(pids[1], signal.SIGKILL)
    flow.timed_reset("reset while killed")
    try:
        flow.ask("killed")
    except Exception as error:
        flow.steps["killed"] = {"ended": type(error).__name__}


def run_with_a_rank_killed_in_a_step(flow: FailureFlow) -> None:
    flow.ask("cold")
    pids = flow.llm.collective_rpc("pid")
    flow.send(vllm_flow.prompt_of(5), tokens=200)
    time.sleep(0.3)  # it generates for longer than that
    os.kill(pids[1], signal.SIGKILL)
    flow.timed_reset("reset while killed")


if __name__ == "__main__":
    model, mode, *arguments = sys.argv[1:]
    with_ranks = {"ranks": run_with_ranks, "ranks-in-a-step": run_with_a_rank_killed_in_a_step}
    if mode in with_ranks:
        timeouts = {"reset_timeout_s": RESET_TIMEOUT_S, "lookup_timeout_s": LOOKUP_TIMEOUT_S}
        flow = FailureFlow(model, ours("count_write", **timeouts), 2)
        with_ranks[mode](flow)
    else:
        endpoint, server = arguments
        connector = ours(
            "signal_at_load",
            store=endpoint,
            store_timeout_s=3,  # one that is stopped is waited for, again and again
            reset_timeout_s=RESET_TIMEOUT_S,
        )
        if mode == "multi":
            second = ours("signal_at_load", namespace="second", min_load_tokens=1 << 30)
            connector = multi(connector, second)
        flow = FailureFlow(model, connector)
        run_with_store(flow, int(server))
    flow.end(is_dead=mode in with_ranks)
