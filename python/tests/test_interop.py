"""The lookup channel against the other half of vLLM's own MooncakeStoreConnector, both ways."""

import concurrent.futures
import pathlib
import signal
import socket
import tempfile
import time
import types

import pytest

pytest.importorskip("vllm")

import zmq
from processes import binary, python, running, wait_until_halted

import newmoon

BLOCK = 16
HASHES = [bytes([n]) * 32 for n in range(1, 6)]
TOKENS = len(HASHES) * BLOCK + 1  # the last token is computed in any case
NAME = f"lookup_rpc_port_0_host_{socket.gethostname()}_dp_rank0"


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="nm") as made:  # a socket's path has 107 bytes
        yield pathlib.Path(made)


# --- their client, our server ---


@pytest.fixture
def our_server(folder):
    """Holds the first three hashes."""
    preload = folder / "hashes"
    preload.write_text("".join(f"{h.hex()}\n" for h in HASHES[:3]))
    endpoint = f"ipc://{folder}/{NAME}"
    with running(binary(), "lookup-server", "--endpoint", endpoint, "--preload", preload) as server:
        yield types.SimpleNamespace(process=server, endpoint=endpoint)


@pytest.fixture
def their_client(folder, our_server, monkeypatch):
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import LookupKeyClient

    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(folder))
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}),
        parallel_config=types.SimpleNamespace(data_parallel_index=0),
    )
    client = LookupKeyClient(config)
    yield client
    client.close()
    client.ctx.destroy(linger=0)


def bounded(call, *arguments):
    """Their client waits for ever for an answer."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        return pool.submit(call, *arguments).result(20)
    finally:
        pool.shutdown(wait=False)


@pytest.mark.parametrize(
    ("hashes", "tokens", "hit"),
    [
        (HASHES, TOKENS, 3 * BLOCK),
        (HASHES[:3], 3 * BLOCK + 1, 3 * BLOCK),
        (HASHES[:3], 3 * BLOCK, 2 * BLOCK),  # a hit of everything is cut by a block
        (HASHES[:2], 2 * BLOCK + 5, 2 * BLOCK),
        (HASHES[3:], TOKENS, 0),
        (HASHES, BLOCK - 1, 0),  # more hashes than tokens
        ([], TOKENS, 0),
    ],
)
def test_their_client_finds_what_is_there(their_client, hashes, tokens, hit):
    found = bounded(their_client.lookup, "request", tokens, hashes)
    assert (found.hit_length, found.tail_key_boundaries) == (hit, ())


def test_their_client_asks_without_waiting(their_client):
    for _ in range(2000):
        found = their_client.lookup("request", TOKENS, HASHES, True)
        if found is not None:
            break
        time.sleep(0.005)
    assert found.hit_length == 3 * BLOCK


def test_their_clients_reset_removes_everything_and_says_so(their_client):
    assert bounded(their_client.lookup, "a", TOKENS, HASHES).hit_length == 3 * BLOCK
    assert bounded(their_client.reset) is True
    assert bounded(their_client.lookup, "b", TOKENS, HASHES).hit_length == 0
    assert bounded(their_client.reset) is True, "a reset may be repeated"


# Each of the first three ends the thread of vLLM's own server, and all its clients hang.
MALFORMED = {
    "lookup alone": [b"lookup"],
    "lookup of two frames": [b"lookup", b"\0\0\0\x21"],
    "64 bytes of number": [b"lookup", b"\xff" * 64, b"\0\x20", HASHES[0]],
    "ragged hashes": [b"lookup", b"\0\0\0\x21", b"\0\x20", b"x" * 33],
    "reset with more": [b"reset", b"junk"],
    "unknown": [b"drop table"],
    "empty": [b""],
    "seventy frames": [b"lookup"] * 70,
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_is_answered_and_hurts_nobody(our_server, their_client, frames):
    with zmq.Context() as context, context.socket(zmq.REQ) as bad:
        bad.setsockopt(zmq.LINGER, 0)
        bad.connect(our_server.endpoint)
        bad.send_multipart(frames)
        assert bad.poll(20_000), "no answer"
        assert bad.recv_multipart() == [b"\0"]
    assert bounded(their_client.lookup, "request", TOKENS, HASHES).hit_length == 3 * BLOCK
    assert our_server.process.poll() is None


# --- our client, their server ---

THEIR_SERVER = """
import sys, threading, types
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import data, worker

BLOCK = 16
present = {bytes([n]) * 32 for n in range(1, 4)}

class Store:
    dead = True
    def remove_all(self, force=False):
        if self.dead:
            self.dead = False
            raise RuntimeError("the master is dead")
        present.clear()

class Worker:
    kv_send_thread, store = None, Store()
    def lookup(self, num_tokens, block_hashes):
        hit = 0
        while hit < len(block_hashes) and bytes(block_hashes[hit]) in present:
            hit += 1
        hit = min(hit, (num_tokens - 1) // BLOCK) * BLOCK
        tail = (data.TailKeyBoundary(0, hit),) if num_tokens % 2 else ()
        return data.MooncakeLookupResult(hit, tail)

config = types.SimpleNamespace(
    kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}),
    parallel_config=types.SimpleNamespace(data_parallel_index=0))
server = worker.LookupKeyServer(Worker(), config)
print("serving", flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def their_server():
    """Its first reset fails."""
    with tempfile.TemporaryDirectory(prefix="nm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_RPC_BASE_PATH", folder)
        with running(*python(THEIR_SERVER)) as process:
            yield types.SimpleNamespace(process=process, endpoint=f"ipc://{folder}/{NAME}")


def test_our_client_asks_their_server(their_server):
    client = newmoon.LookupKeyClient(their_server.endpoint, timeout_s=20)
    assert client.lookup(TOKENS, HASHES) == 3 * BLOCK  # with tail keys in the answer
    assert client.lookup(TOKENS + 1, HASHES) == 3 * BLOCK  # without
    assert client.lookup(TOKENS, HASHES[3:]) == 0
    assert client.lookup(3 * BLOCK, HASHES[:3]) == 2 * BLOCK
    assert client.lookup(TOKENS, []) == 0

    answer = client.reset()
    assert (answer["success"], answer["fenced"]) == (False, False) and answer["error"]
    assert client.lookup(TOKENS, HASHES) == 3 * BLOCK
    assert client.reset() == {"success": True, "fenced": False, "error": ""}
    assert client.lookup(TOKENS, HASHES) == 0


def test_our_client_gives_their_server_up_in_time_and_finds_it_again(their_server):
    client = newmoon.LookupKeyClient(their_server.endpoint, timeout_s=1)
    their_server.process.send_signal(signal.SIGSTOP)
    wait_until_halted(their_server.process.pid)
    try:
        with pytest.raises(newmoon.Error) as raised:
            client.lookup(TOKENS, HASHES)
        assert raised.value.code == "deadline"
        answer = client.reset()
        assert (answer["success"], answer["fenced"]) == (False, False)
    finally:
        their_server.process.send_signal(signal.SIGCONT)
    patient = newmoon.LookupKeyClient(their_server.endpoint, timeout_s=20)
    assert patient.lookup(TOKENS, HASHES[3:]) == 0
    assert client.lookup(TOKENS, HASHES[3:]) == 0


def test_a_dialect_must_be_known():
    with pytest.raises(newmoon.Error, match="dialect 'smoke'"):
        newmoon.LookupKeyClient("ipc:///nowhere", dialect="smoke")
    with pytest.raises(newmoon.Error, match="ipc://"):
        newmoon.LookupKeyClient("tcp://127.0.0.1:1")
