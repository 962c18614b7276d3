"""A pause that keeps requests while one of them is loading, in real vLLM, told as JSON:
vllm_pause_flow.py MODEL ENDPOINT PID, of a store server, which is stopped so that the load lasts.
"""

import json
import os
import signal
import sys
import threading
import time

from vllm_failures import FailureFlow, ours, wait_until_halted
from vllm_flow import prompt_of

STOPPED_S = 2.0


def call(flow: FailureFlow, method: str, *arguments) -> None:
    flow.llm.llm_engine.engine_core.call_utility(method, *arguments)


def run(flow: FailureFlow, server: int) -> dict[str, dict]:
    flow.ask("A cold")
    flow.push_out()
    flow.stats("stats before")
    flow.signal_at_load(server, signal.SIGSTOP)
    flow.send(prompt_of(0))
    wait_until_halted(server)

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
    return flow.steps


if __name__ == "__main__":
    model, endpoint, server = sys.argv[1:]
    rpcs = ["connector_stats", "signal_at_load", "scale_norms_unseen"]
    connector = ours(store=endpoint, store_timeout_s=60, load_timeout_s=60, reading_rpcs=rpcs)
    print("FLOW " + json.dumps(run(FailureFlow(model, connector), int(server))), flush=True)
