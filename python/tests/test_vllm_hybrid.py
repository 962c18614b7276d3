"""Real vLLM with a model of two kinds of attention: refused in a clear line, which says what to do,
and that does work."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

from processes import HERE, group_members, run_flow, wait_until

pytestmark = pytest.mark.nightly
FOUND = 6 * 128  # whole blocks of the prompt


def test_the_user_sees_one_clear_line(tiny_model):
    process = subprocess.Popen(
        [sys.executable, "vllm_hybrid_flow.py", tiny_model],
        cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0, text=True,
    )  # fmt: skip
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    wait_until(lambda: not group_members(process.pid), "its processes were to end")
    refusals = set(re.findall(r"ValueError: (newmoon: .*)", said))
    assert len(refusals) == 1, said[-6000:]
    (refusal,) = refusals
    assert "3 KV cache groups" in refusal and "--disable-hybrid-kv-cache-manager" in refusal


def test_as_one_group_an_external_hit_is_as_good_as_a_local_one(tiny_model):
    told = run_flow("vllm_hybrid_flow.py", tiny_model, "as-one-group")
    local, external = told["local"], told["external"]
    assert told["cold"]["cached"] == 0
    assert (local["local"], external["local"], external["external"]) == (FOUND, 0, FOUND)
    assert external["tokens"] == local["tokens"] and external["logprobs"] == local["logprobs"]
