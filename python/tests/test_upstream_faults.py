"""Faults of vLLM's own MooncakeStoreConnector on a real Mooncake store: each is done to its code as it
is, which fails as said, and to ours, which does not. (tests/mooncake/ has more of them, with the
wheel's client in the place of upstream's code.)"""

import contextlib
import itertools
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

pytest.importorskip("vllm")

import zmq

import newmoon
from fault_engines import BLOCK, BLOCKS
from mooncake_master import MooncakeMaster
from processes import HERE, wait_until

ALL = BLOCKS * BLOCK  # tokens
OLD, NEW = 1, 2  # bytes of KV
HANG_S = 5  # what has no answer by then will have none
START_S = 120  # of an engine: it imports vLLM
with_upstream = pytest.mark.nightly  # ten seconds a start; ours alone needs no vLLM


class HangsError(Exception):
    """No answer in time."""


class Engine:
    """A process of fault_engines.py."""

    def __init__(self, order: dict):
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = {
            "PYTHONPATH": paths,
            "VLLM_RPC_BASE_PATH": order["folder"],
            "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1",
            "MC_LOG_LEVEL": "ERROR",
        }
        self.log = pathlib.Path(order["folder"], "log")
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "fault_engines.py", json.dumps(order)],
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
                text=True,
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.endpoint = ""

    def _read(self) -> None:
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _answer(self, limit_s: float):
        try:
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            raise HangsError from None
        assert line is not None, self.log.read_text()[-8000:]
        return json.loads(line)

    def wait_until_started(self) -> None:
        self.endpoint = self._answer(START_S)

    def __call__(self, call: str, *, limit_s: float = 60, **arguments):
        self._process.stdin.write(json.dumps({"call": call} | arguments) + "\n")
        self._process.stdin.flush()
        return self._answer(limit_s)

    def save(self, byte: int) -> None:
        """And waits for it."""
        self("save", byte=byte)
        wait_until(lambda: not any(self("unfinished")), "the save was to end")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the group is ours
        self._process.wait(30)


class Line:
    """A rank's way to the master. While it is held, what the rank sends waits on it."""

    def __init__(self, port: int):
        self._master = port
        self._flows = threading.Event()
        self._flows.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._flows.clear()

    def let_go(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.let_go()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                rank, _ = self._listening.accept()
                master = socket.create_connection(("127.0.0.1", self._master))
                for pair in ((rank, master), (master, rank)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="nm") as made:  # a socket's path has 107 bytes
        yield pathlib.Path(made)


@pytest.fixture
def master(folder):
    with MooncakeMaster(folder / "master.log") as started:
        yield started


@pytest.fixture
def start(folder, master):
    """Starts engines side by side, each given as (way, changes of its order)."""
    engines, numbers = [], itertools.count()

    def start(*wanted: tuple[str, dict]) -> list[Engine]:
        new = []
        for way, changes in wanted:
            own = folder / str(next(numbers))
            own.mkdir()
            order = {
                "way": way,
                "model": "model",
                "folder": str(own),
                "masters": [master.port],
                "metrics_port": master.metrics_port,
                "reset_mode": "fence",
            }
            new.append(Engine(order | changes))
        engines.extend(new)
        for engine in new:
            engine.wait_until_started()
        return new

    yield start
    for engine in engines:
        engine.kill()


@pytest.fixture
def line(master):
    made = Line(master.port)
    yield made
    made.close()


# --- the master is dead ---


@with_upstream
def test_upstream_acks_a_reset_of_a_dead_master(start, master):
    (engine,) = start(("theirs", {}))
    engine.save(OLD)
    master.kill()
    assert engine("reset") == {"success": True}
    master.start()


def test_ours_says_no_to_remove_all_of_a_dead_master_within_the_deadline(start, master):
    (engine,) = start(("ours", {"reset_mode": "remove_all"}))
    engine.save(OLD)
    assert engine("hit") == ALL
    assert engine("reset")["success"]
    master.kill()
    begin = time.monotonic()
    answer = engine("reset", timeout_s=5)
    assert (answer["success"], answer["error"] != "") == (False, True), answer
    assert time.monotonic() - begin < 2 * 5


# --- a save is queued on rank 1 of 2 ---


def hold_save_of_rank_1(engine: Engine, line: Line) -> None:
    line.hold()
    engine("save", byte=OLD)
    wait_until(lambda: engine("unfinished") == [0, 1], "rank 0's save was to end, and rank 1's not")


@with_upstream
def test_upstream_finds_a_save_of_rank_1_after_the_reset_and_mixes_two_weights(start, master, line):
    (engine,) = start(("theirs", {"masters": [master.port, line.port]}))
    hold_save_of_rank_1(engine, line)
    assert engine("reset") == {"success": True}
    assert engine("hit") == 0
    line.let_go()
    wait_until(lambda: engine("unfinished") == [0, 0], "rank 1's save was to end")
    engine.save(NEW)
    assert engine("hit") == ALL
    assert engine("load") == [[NEW], [OLD]]


def test_ours_finds_no_save_of_rank_1_after_the_reset(start, master, line):
    (engine,) = start(("ours", {"masters": [master.port, line.port]}))
    hold_save_of_rank_1(engine, line)
    assert engine("reset")["success"]
    assert engine("hit") == 0
    line.let_go()
    wait_until(lambda: engine("unfinished") == [0, 0], "rank 1's save was to end")
    assert engine("hit") == 0

    def saved_anew() -> bool:  # rank 1 may not yet know that its store answers again
        engine.save(NEW)
        return engine("hit") == ALL

    wait_until(saved_anew, "the new KV was to be found")
    assert engine("load") == [[NEW], [NEW]]


# --- a malformed frame ---


def send_frame(engine: Engine, seconds: float) -> list[bytes] | None:
    """What a sender of a lookup without its frames is answered."""
    with zmq.Context() as context, context.socket(zmq.REQ) as sender:
        sender.setsockopt(zmq.LINGER, 0)
        sender.connect(engine.endpoint)
        sender.send(b"lookup")
        return sender.recv_multipart() if sender.poll(seconds * 1000) else None


@with_upstream
def test_a_malformed_frame_ends_upstreams_server_and_its_client_hangs(start):
    (engine,) = start(("theirs", {}))
    engine.save(OLD)
    assert engine("hit") == ALL and engine("server_lives")
    assert send_frame(engine, 2) is None
    wait_until(lambda: not engine("server_lives"), "the server was to end")
    with pytest.raises(HangsError):
        engine("reset", limit_s=HANG_S)


def test_a_malformed_frame_is_answered_by_ours_which_lives(start):
    (engine,) = start(("ours", {}))
    engine.save(OLD)
    assert engine("hit") == ALL
    assert send_frame(engine, 20) == [b"\0"]
    assert engine("hit") == ALL
    assert engine("reset")["success"]
    assert engine("hit") == 0


# --- two engines of a model, one of which is updated ---


@with_upstream
def test_upstreams_reset_empties_the_other_engines_cache_and_finds_its_old_kv(start):
    updated, other = start(("theirs", {}), ("theirs", {}))
    other.save(OLD)
    assert other("hit") == ALL
    assert updated("reset") == {"success": True}
    assert other("hit") == 0, "its weights have not changed"
    other.save(OLD)
    assert updated("hit") == ALL
    assert updated("load") == [[OLD]]


def test_our_reset_leaves_the_other_engines_cache_and_finds_nothing_old(start):
    updated, other = start(("ours", {}), ("ours", {}))
    other.save(OLD)
    assert other("hit") == ALL
    assert updated("reset")["success"]
    assert other("hit") == ALL
    other.save(OLD)
    assert updated("hit") == 0
    updated.save(NEW)
    assert updated("load") == [[NEW]]
    assert other("load") == [[OLD]]


# --- a writer is killed between start and end of its puts (ours: StuckKeysTest) ---


@with_upstream
def test_upstream_takes_a_put_of_a_stuck_key_for_saved(start):
    engine, writer = start(("theirs", {}), ("theirs", {}))
    assert writer("begin_puts") == [0] * BLOCKS
    writer.kill()
    engine.save(NEW)
    assert engine("saved_tokens") == [ALL]
    assert engine("hit") == 0


# --- another model's keys are on the same master ---


@with_upstream
def test_upstreams_reset_wipes_another_models_keys(start):
    engine, other = start(("theirs", {}), ("theirs", {"model": "another"}))
    engine.save(OLD)
    other.save(OLD)
    assert other("hit") == ALL
    assert engine("reset") == {"success": True}
    assert other("hit") == 0


@with_upstream
def test_our_reset_leaves_another_models_keys(start, master):
    """Nothing names the weights, so what the reset leaves behind is purged."""
    engine, other = start(("ours", {}), ("theirs", {"model": "another"}))
    engine.save(OLD)
    other.save(OLD)
    assert engine("hit") == ALL
    with newmoon.open_store(master.url(), timeout_s=5) as store:
        (left,) = [usage["scope"] for usage in store.scopes()]
        assert engine("reset")["success"]
        assert engine("hit") == 0
        engine.save(NEW)
        wait_until(
            lambda: left not in [usage["scope"] for usage in store.scopes()], "it was to be purged"
        )
    assert other("hit") == ALL
    assert other("load") == [[OLD]]
