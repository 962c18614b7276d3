"""Real vLLM while stores and ranks stop and die: no request fails, and nothing hangs."""

import os
import pathlib
import signal
import tempfile

import pytest

pytest.importorskip("vllm")

from processes import python, run_flow, running, store_server, wait_until_halted
from vllm_failures import RESET_TIMEOUT_S

pytestmark = pytest.mark.nightly
FOUND = 6 * 128  # whole blocks of the prompt
# Until a reset has answered: what else a busy machine takes, beside the deadline.
RESET_LIMIT_S = RESET_TIMEOUT_S + 10


def sockets_in(folder: str) -> list[str]:
    return sorted(p.name for p in pathlib.Path(folder, f"newmoon-{os.getuid()}").iterdir())


@pytest.fixture(scope="module", params=["store", "multi"])
def told(request, tiny_model):
    """`multi`: inside MultiConnector, which was told that failed loads fail requests."""
    with tempfile.TemporaryDirectory(prefix="nm") as folder, store_server(folder) as server:
        steps = run_flow("vllm_failures.py", tiny_model, request.param, *server, base=folder)
        assert sockets_in(folder) == []
        yield steps | {"connectors": {"store": 1, "multi": 2}[request.param]}


def test_hits_come_from_the_store(told):
    assert told["cold"]["cached"] == 0
    assert (told["external"]["local"], told["external"]["external"]) == (0, FOUND)
    assert told["external"]["logprobs"] == told["local"]["logprobs"]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_load_that_its_store_never_answers_is_computed(told, how):
    step = told[f"{how} at the load"]
    assert step["external"] == FOUND, "the lookup was to find everything"
    assert step["cached"] == 0 and step["ended"] == "length"
    assert step["tokens"] == told["cold"]["tokens"]


@pytest.mark.parametrize("name", ["stopped", "killed", "after all"])
def test_without_its_store_vllm_goes_on(told, name):
    assert told[name]["external"] == 0 and told[name]["ended"] == "length"
    assert told[name]["tokens"] == told["cold"]["tokens"]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_reset_needs_no_store(told, how):
    reset = told[f"reset while {how}"]
    assert reset["answer"] is True and reset["seconds"] < RESET_LIMIT_S


def test_a_reset_without_a_store_is_complete(told):
    resets = 3 * told["connectors"]
    assert told["resets"] == {"resets": resets, "degraded_resets": 0, "failed_resets": 0}


def test_calls_without_the_store_are_counted(told):
    assert told["stats"]["calls_without_store"] > 0


def test_a_store_that_is_back_is_used_again(told):
    assert told["again"]["external"] == FOUND
    assert told["again"]["tokens"] == told["cold"]["tokens"]


def test_a_reset_fences(told):
    assert told["reset"]["answer"] is True
    assert told["after reset"]["cached"] == told["after reset"]["external"] == 0
    assert told["after reset, external"]["external"] == FOUND


def assert_answered_or_over(reset: dict) -> None:
    """vLLM ends with its first dead rank. All that is ours of a reset runs in the engine, so either it
    answers in time, or vLLM's engine is over; how long that takes, and that vLLM's client then waits
    on for the answer, is vLLM's."""
    if reset["answer"] is True:
        assert reset["seconds"] < RESET_LIMIT_S
    else:
        assert reset["answer"] in ("EngineDeadError", "none from an engine that ended")


def test_ranks_that_stop_and_die(tiny_model):
    with tempfile.TemporaryDirectory(prefix="nm") as folder:
        told = run_flow("vllm_failures.py", tiny_model, "ranks", base=folder)
    assert told["external"]["external"] == FOUND and told["external"]["local"] == 0
    assert told["external"]["logprobs"] == told["local"]["logprobs"]
    assert [rank["loaded_blocks"] for rank in told["ranks"]] == [FOUND // 128] * 2
    # A rank had written weights, and did not say so.
    assert told["silent"]["cached"] == told["silent"]["local"] == 0
    assert told["silent"]["logprobs"] == told["silent cold"]["logprobs"]
    # Fenced, though a rank could not say that it knows.
    assert told["reset while stopped"]["answer"] is True
    assert told["reset while stopped"]["seconds"] < RESET_LIMIT_S
    assert told["resets"] == {"resets": 2, "degraded_resets": 1, "failed_resets": 0}
    assert told["after reset"]["cached"] == 0
    assert told["after reset"]["tokens"] == told["cold"]["tokens"]
    assert told["again"]["external"] == FOUND
    assert_answered_or_over(told["reset while killed"])
    assert told["killed"]["ended"] == "EngineDeadError"


def test_a_reset_that_meets_a_rank_that_died_in_a_step(tiny_model):
    """The engine waits for that step until its executor has ended the other rank, and then fails."""
    with tempfile.TemporaryDirectory(prefix="nm") as folder:
        told = run_flow("vllm_failures.py", tiny_model, "ranks-in-a-step", base=folder)
    assert_answered_or_over(told["reset while killed"])


RANK = """
import ctypes, sys, threading
from newmoon._core import ConnectorWorker
kv = (ctypes.c_char * 4096)()
worker = ConnectorWorker(
    store="memory", store_bytes=1 << 20, store_timeout_s=1.0, load_timeout_s=1.0, layout="l",
    rank=int(sys.argv[2]), rank_count=2, block_size=16, endpoint=sys.argv[1], engine_id="e",
    regions=[(ctypes.addressof(kv), 1024, 1024)],
    block_count=4, staging_bytes=4096)
print("serving", flush=True)
threading.Event().wait()
"""


def test_the_next_start_sweeps_up_after_a_killed_one(tmp_path):
    folder = tmp_path / f"newmoon-{os.getuid()}"
    with running(*python(RANK, f"ipc://{folder}/old-rank0.sock", "0")) as old:
        old.kill()
        old.wait(10)
    left = sockets_in(str(tmp_path))
    assert left == ["old-rank0.sock", "old-rank0.sock.lock"]
    for name in left:
        os.utime(folder / name, (0, 0))  # it did not begin just now
    with running(*python(RANK, f"ipc://{folder}/new-rank0.sock", "0")):
        assert sockets_in(str(tmp_path)) == ["new-rank0.sock", "new-rank0.sock.lock"]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_reset_without_one_of_its_ranks_is_degraded_and_names_it(tmp_path, number):
    from newmoon._core import ConnectorScheduler

    endpoints = [f"ipc://{tmp_path}/newmoon/rank{rank}.sock" for rank in range(2)]
    ranks = [python(RANK, endpoint, str(rank)) for rank, endpoint in enumerate(endpoints)]
    with running(*ranks[0]), running(*ranks[1]) as one:
        scheduler = ConnectorScheduler(
            endpoints=endpoints, namespace="", model="m", layout="l", block_size=16
        )
        answer = scheduler.reset(timeout_s=20)
        assert (answer["success"], answer["degraded"]) == (True, False)
        before = scheduler.epoch
        one.send_signal(number)
        wait_until_halted(one.pid)
        answer = scheduler.reset(timeout_s=3)
        assert (answer["success"], answer["degraded"], answer["silent_ranks"]) == (True, True, [1])
        assert "rank 1" in answer["error"] and scheduler.epoch == before + 1
        # It is not waited for again, however long the others might take.
        assert scheduler.reset(timeout_s=600)["silent_ranks"] == [1]
