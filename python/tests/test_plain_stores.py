"""The plain API on stores outside this process: Mooncake's, with a real master."""

import json
import subprocess
import sys
import time

import pytest

import newmoon
from mooncake_master import MooncakeMaster

pytest.importorskip("mooncake")

BLOCK = bytes(range(256)) * 64
SMALL = {"global_segment_size": "64MB", "local_buffer_size": "16MB"}


def scope(label="step-1"):
    return newmoon.Scope(namespace="run-7", model="tiny", layout="block=16", label=label)


def block_hash(n):
    return bytes([n]) * 32


def eventually(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with MooncakeMaster(tmp_path_factory.mktemp("master") / "log") as started:
        yield started


@pytest.fixture
def store(master):
    with newmoon.open_store(master.url(**SMALL), timeout_s=5) as opened:
        yield opened


def test_a_block_comes_back_only_under_its_scope(store):
    store.put(scope(), block_hash(1), BLOCK)
    out = bytearray(len(BLOCK))
    assert store.get(scope(), block_hash(1), out) and out == BLOCK
    assert not store.get(scope("step-2"), block_hash(1), out)
    assert not store.get(scope(), block_hash(2), out)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_buffer_of_another_length_than_the_value_is_refused(store, more):
    store.put(scope("length"), block_hash(1), BLOCK)
    out = bytearray(len(BLOCK) + more)
    with pytest.raises(newmoon.Error, match=f"has {len(BLOCK)} bytes, and {len(out)} were") as raised:
        store.get(scope("length"), block_hash(1), out)
    assert raised.value.code == "bad_request"


def test_lookup_counts_the_leading_blocks(store):
    for n in (10, 11, 13):
        store.put(scope(), block_hash(n), BLOCK)
    assert store.lookup(scope(), [block_hash(n) for n in (10, 11, 12, 13)]) == 2
    assert store.lookup(scope("step-2"), [block_hash(10)]) == 0


def test_a_purge_leaves_other_scopes_alone(store):
    for label in ("purged", "kept"):
        store.put(scope(label), block_hash(1), BLOCK)
    store.purge(scope("purged"))
    assert store.lookup(scope("purged"), [block_hash(1)]) == 0
    assert store.lookup(scope("kept"), [block_hash(1)]) == 1
    assert eventually(lambda: scope("purged").id not in [s["scope"] for s in store.scopes()])
    assert eventually(lambda: store.stats()["unfinished_purges"] == 0)


def test_stats_and_scopes_are_those_of_the_whole_store(store):
    store.put(scope("counted"), block_hash(1), BLOCK)
    assert store.stats()["blocks"] >= 1
    (usage,) = [s for s in store.scopes() if s["scope"] == scope("counted").id]
    assert usage["blocks"] == 1 and usage["bytes"] >= len(BLOCK) and usage["holders"] == []


def test_the_config_file_of_vllm_is_read(master, tmp_path, monkeypatch):
    config = tmp_path / "mooncake.json"
    config.write_text(json.dumps({
        "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
        "master_server_address": f"127.0.0.1:{master.port}",
        "global_segment_size": "64MB", "local_buffer_size": "16MB",
    }))  # fmt: skip
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(config))
    monkeypatch.setenv("MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "127.0.0.1")
    url = f"mooncake://?metrics_port={master.metrics_port}"
    with newmoon.open_store(url, timeout_s=5) as opened:
        opened.put(scope("file"), block_hash(1), BLOCK)
        assert opened.lookup(scope("file"), [block_hash(1)]) == 1


def test_no_master_is_said_at_once():
    with pytest.raises(newmoon.Error, match="no master") as raised:
        newmoon.open_store("mooncake://127.0.0.1:1?local_hostname=127.0.0.1")
    assert raised.value.code == "unavailable"


def test_signal_handlers_are_left_alone(master):
    code = """
import signal, sys, newmoon
mine = lambda *_: None
signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
for one in signals: signal.signal(one, mine)
store = newmoon.open_store(sys.argv[1])
assert all(signal.getsignal(one) is mine for one in signals)
import os
os.kill(os.getpid(), signal.SIGTERM)  # taken by Python, not by Mooncake
print("lives")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, master.url(**SMALL)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr[-2000:]


@pytest.mark.parametrize("closing", ["store.close()", "", "os.kill(master, signal.SIGKILL)"])
def test_python_ends_orderly(closing, tmp_path):
    """Whether or not the store was closed, and with a master that died."""
    code = f"""
import os, signal, sys, threading, newmoon
master = int(sys.argv[2])
store = newmoon.open_store(sys.argv[1])
scope = newmoon.Scope(model="m", layout="l", label="a")
store.put(scope, b"h" * 32, b"x" * 1000)
assert store.lookup(scope, [b"h" * 32]) == 1
{closing}
print("ended")
"""
    with MooncakeMaster(tmp_path / "log") as master:
        done = subprocess.run(
            [sys.executable, "-c", code, master.url(**SMALL), str(master.process.pid)],
            capture_output=True,
            text=True,
            timeout=90,
        )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr[-2000:]
