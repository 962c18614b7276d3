"""A pause that keeps requests while one of them is loading, resets without a pause, and a local reset
while a request is saving, in real vLLM, told as JSON: vllm_pause_flow.py MODEL ENDPOINT PID, of a store
server, which is stopped so that loads and saves last.
"""

import os
import signal
import sys
import threading
import time

from processes import wait_until_halted
from vllm_failures import FailureFlow
from vllm_flow import ours, prompt_of

STOPPED_S = 2.0


def call(flow: FailureFlow, method: str, *arguments) -> None:
    flow.llm.llm_engine.engine_core.call_utility(method, *arguments)


def send_and_stop_its_load(flow: FailureFlow, server: int) -> None:
    flow.signal_at_load(server, signal.SIGSTOP)
    flow.send(prompt_of(0))
    wait_until_halted(server)


def reset_while_it_loads(
    flow: FailureFlow, server: int, name: str, factor: float, **arguments: bool
) -> None:
    """Other weights that nobody announces, while the prompt of the weights of before is loading."""
    flow.push_out()
    send_and_stop_its_load(flow, server)
    flow.change_weights(factor)
    try:
        flow.reset(f"reset {name}", **arguments)
    except Exception as error:
        flow.steps[f"reset {name}"] = {"answer": type(error).__name__}
    os.kill(server, signal.SIGCONT)
    flow.receive(f"{name} kept")
    flow.reset(f"reset {name} again", reset_connector=True)
    flow.ask(f"{name} cold")


def pause_while_loading(flow: FailureFlow, server: int) -> None:
    flow.ask("A cold")
    flow.push_out()
    flow.stats("stats before")
    send_and_stop_its_load(flow, server)

    begin = time.monotonic()
    threading.Timer(STOPPED_S, os.kill, (server, signal.SIGCONT)).start()
    call(flow, "pause_scheduler", "keep", False)
    flow.steps["pause"] = {"seconds": time.monotonic() - begin}
    flow.stats("stats paused")
    flow.change_weights(1.5)  # as if nothing was written: the reset alone makes it right
    flow.reset("reset", reset_running_requests=True, reset_connector=True)
    call(flow, "resume_scheduler")
    flow.receive("B kept")

    flow.reset("reset again", reset_connector=True)
    flow.ask("B cold")  # nothing is left in any cache, as in an engine that has just begun


def reset_without_pause(flow: FailureFlow, server: int) -> None:
    both = {"reset_running_requests": True, "reset_connector": True}
    reset_while_it_loads(flow, server, "C", 2.0, **both)
    reset_while_it_loads(flow, server, "D", 2.5, reset_running_requests=True)
    reset_while_it_loads(flow, server, "E", 3.0)


def reset_while_saving(flow: FailureFlow, server: int) -> None:
    flow.llm.collective_rpc("signal_at_save", args=(server, signal.SIGSTOP))
    flow.ask("saving", seed=5)
    flow.steps["stats before local reset"] = flow.rank_stats()
    flow.reset("local reset")
    flow.steps["stats after local reset"] = flow.rank_stats()
    os.kill(server, signal.SIGCONT)
    flow.ask("saved", seed=5)


if __name__ == "__main__":
    model, endpoint, server = sys.argv[1:]
    lasting = {"store_timeout_s": 60, "load_timeout_s": 60}
    connector = ours("signal_at_load", "signal_at_save", store=endpoint, **lasting)
    flow = FailureFlow(model, connector)
    pause_while_loading(flow, int(server))
    reset_without_pause(flow, int(server))
    reset_while_saving(flow, int(server))
    flow.end()
