"""A fence cancels the load of a prompt of more than half of all blocks, which is found again behind it,
in real vLLM, told as JSON: vllm_crowded_flow.py MODEL ENDPOINT PID, of a store server, which is stopped
so that the load lasts.
"""

import os
import signal
import sys

from processes import wait_until_halted
from vllm_failures import FailureFlow
from vllm_flow import ours, prompt_of

BLOCKS = 12  # the prompt takes 7

if __name__ == "__main__":
    model, endpoint, pid = sys.argv[1:]
    server = int(pid)
    lasting = {"store_timeout_s": 60, "load_timeout_s": 60}
    connector = ours("signal_at_load", store=endpoint, identity="digest", **lasting)
    flow = FailureFlow(model, connector, num_gpu_blocks_override=BLOCKS)
    flow.ask("cold")
    flow.push_out()
    flow.signal_at_load(server, signal.SIGSTOP)
    flow.send(prompt_of(0))
    wait_until_halted(server)
    flow.llm.collective_rpc("count_write")
    os.kill(server, signal.SIGCONT)
    flow.receive("loaded again")
    flow.end()
