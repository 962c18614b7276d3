"""The package without vLLM."""

import contextlib
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

import newmoon
import newmoon._core

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = bytes(range(256)) * 16


def scope(label="step-1", layout="block=16 dtype=bf16"):
    return newmoon.Scope(namespace="run-7", model="tiny", layout=layout, label=label)


@pytest.fixture
def store():
    with newmoon.open_store("memory", budget_bytes=16 << 20) as opened:
        yield opened


def test_import_needs_no_vllm():
    code = "import sys; sys.modules['vllm'] = sys.modules['torch'] = None; import newmoon"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_readme_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})


def test_the_stub_names_what_the_module_has():
    stub = (pathlib.Path(newmoon.__file__).parent / "_core.pyi").read_text()
    module = newmoon._core
    for name in (n for n in vars(module) if not n.startswith("_")):
        body = re.search(rf"^(?:class|def) {name}\b.*?(?=^\S|\Z)", stub, re.MULTILINE | re.DOTALL)
        assert body, f"{name} has no type"
        if isinstance(getattr(module, name), type) and name != "Error":
            members = {m for m in vars(getattr(module, name)) if not m.startswith("_")}
            assert members == set(re.findall(r"^    def ([a-z]\w*)\(", body[0], re.MULTILINE)), name


def test_the_package_is_typed():
    package = pathlib.Path(newmoon.__file__).parent
    assert (package / "py.typed").exists()
    stub = (package / "_core.pyi").read_text()
    for name in set(newmoon.__all__):
        assert re.search(rf"^(class|def) {name}\b", stub, re.MULTILINE), f"{name} has no type"


# vLLM 0.32, PYTHONHASHSEED=0, tokens 1..32 in blocks of 16, cache_salt "policy-v1".
@pytest.mark.parametrize(
    ("algorithm", "first"),
    [
        ("sha256", "9f6c84a9ad4783d1a3f0b15eb42ccc0bc4e32f80a24df96832b32d310d2ad4c6"),
        ("sha256_cbor", "54e85495805a7166a5b1eb9c7e1178cdfda1febf0ff61d89d32928727f9be9b7"),
        ("xxhash_cbor", "c339b95ba0f326fadd9a4652d974c186"),
    ],
)
def test_hashes_are_those_of_vllm(algorithm, first):
    hasher = newmoon.BlockHasher(algorithm=algorithm, block_size=16, seed="0")
    hashes = hasher.hash_blocks(range(1, 40), cache_salt="policy-v1")
    assert len(hashes) == 2  # the third block is not full
    assert hashes[0].hex() == first
    lora = hasher.hash_blocks(range(1, 40), lora=("name", "/path"))
    assert lora[0] != hashes[0] and lora[1] != hashes[1]


def test_a_block_comes_back_only_under_its_scope(store):
    store.put(scope(), b"h" * 32, BLOCK)
    out = bytearray(len(BLOCK))
    assert store.get(scope(), b"h" * 32, out)
    assert out == BLOCK
    assert not store.get(scope("step-2"), b"h" * 32, out)
    assert not store.get(scope(layout="block=16 dtype=fp8"), b"h" * 32, out)
    assert not store.get(scope(), b"i" * 32, out)


def test_the_first_put_stays(store):
    store.put(scope(), b"h" * 32, BLOCK)
    store.put(scope(), b"h" * 32, bytes(len(BLOCK)))
    out = bytearray(len(BLOCK))
    assert store.get(scope(), b"h" * 32, out) and out == BLOCK


def test_lookup_counts_the_leading_blocks(store):
    hashes = [bytes([n]) * 32 for n in range(1, 6)]
    for block_hash in (*hashes[:3], hashes[4]):
        store.put(scope(), block_hash, BLOCK)
    assert store.lookup(scope(), hashes) == 3
    assert store.lookup(scope(), hashes[3:]) == 0
    assert store.lookup(scope("step-2"), hashes) == 0


@pytest.mark.parametrize("more", [-1, 1])
def test_a_buffer_of_another_length_than_the_value_is_refused(store, more):
    store.put(scope(), b"h" * 32, BLOCK)
    out = bytearray(len(BLOCK) + more)
    with pytest.raises(newmoon.Error, match=f"has {len(BLOCK)} bytes, and {len(out)} were") as raised:
        store.get(scope(), b"h" * 32, out)
    assert raised.value.code == "bad_request"


def test_a_budget_goes_by_the_name_of_its_parameter():
    with pytest.raises(newmoon.Error, match="budget_bytes") as raised:
        newmoon.open_store("memory", budget_bytes=0)
    assert raised.value.code == "bad_request" and "--" not in str(raised.value)
    with newmoon.open_store("memory", budget_bytes=1 << 20) as small:
        with pytest.raises(newmoon.Error, match="budget_bytes") as raised:
            small.put(scope(), b"h" * 32, bytes(2 << 20))
    assert "--" not in str(raised.value)


def test_lines_on_stderr_say_whose_they_are():
    code = """
import newmoon, time
newmoon.open_store("ipc:///nowhere/store.sock")
time.sleep(30)
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        process.kill()
    assert line.startswith("newmoon: warning store: ") and "ipc:///nowhere/store.sock" in line


def test_bad_arguments_are_named(store):
    with pytest.raises(newmoon.Error, match="33") as raised:
        store.put(scope(), b"h" * 33, BLOCK)
    assert raised.value.code == "bad_request"
    with pytest.raises(newmoon.Error, match="contiguous"):
        store.put(scope(), b"h" * 32, memoryview(BLOCK)[::2])
    with pytest.raises(BufferError):
        store.get(scope(), b"h" * 32, BLOCK)  # not writable
    with pytest.raises(newmoon.Error, match="carrier-pigeon"):
        newmoon.open_store("carrier-pigeon://")
    with pytest.raises(newmoon.Error, match="digest"):
        newmoon.Scope(model="m", layout="l", digest=b"short")
    with pytest.raises(newmoon.Error, match="Fence"):
        newmoon.Scope(model="m", layout="l")
    with pytest.raises(newmoon.Error, match="block_size"):
        newmoon.BlockHasher(block_size=0)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300])
def test_what_is_no_time_to_wait_is_refused(seconds):
    with pytest.raises(newmoon.Error, match="timeout_s") as raised:
        newmoon.open_store("ipc:///nowhere/store.sock", timeout_s=seconds)
    assert raised.value.code == "bad_request"
    with pytest.raises(newmoon.Error, match="timeout_s"):
        newmoon.LookupKeyClient("ipc:///nowhere/lookup.sock", timeout_s=seconds)


def test_messages_name_what_this_api_has():
    with pytest.raises(newmoon.Error, match="budget of 0 bytes"):
        newmoon.open_store("memory", budget_bytes=0)
    with pytest.raises(newmoon.Error) as raised:
        newmoon.open_store("none")
    assert "or none" not in str(raised.value)
    newmoon.set_log_level(name="warning")


def test_a_sealed_fence_has_no_scope_to_put_under(store):
    fence = newmoon.Fence(model="tiny", layout="l")
    for call in (
        lambda: store.put(fence.scope, b"h" * 32, BLOCK),
        lambda: store.get(fence.scope, b"h" * 32, bytearray(len(BLOCK))),
        lambda: store.lookup(fence.scope, [b"h" * 32]),
        lambda: store.purge(fence.scope),
    ):
        with pytest.raises(newmoon.Error, match="sealed") as raised:
            call()
        assert len(str(raised.value)) < 200  # without the block's bytes


def test_a_scope_equals_nothing_else():
    assert scope() == scope() and scope() != scope("step-2")
    assert scope() != 5 and scope() != None  # noqa: E711


def test_a_child_of_a_fork_can_end():
    """With a store on the heap that it can neither use nor close: the threads are the parent's."""
    code = """
import os, sys, newmoon
store = newmoon.open_store("memory")
child = os.fork()
if child == 0:
    try:
        store.stats()
    except newmoon.Error as error:
        print(error, flush=True)
    if len(sys.argv) > 1:
        store.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(store.stats()["blocks"])
"""
    for arguments in ([], ["close"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "before a fork" in done.stdout and done.stdout.endswith("0\n")


def scheduler_and_calls(endpoint):
    scheduler = newmoon._core.ConnectorScheduler(
        endpoints=[endpoint], namespace="", model="m", layout="l", block_size=16
    )
    return lambda: scheduler.reset(timeout_s=2), lambda: scheduler.epoch


def client_and_calls(endpoint):
    client = newmoon.LookupKeyClient(endpoint, timeout_s=2)
    return client.reset, client.reset


@pytest.fixture
def uninterrupted():
    """A thread that runs Python goes on until it waits: nobody comes between its last step in
    Python and the call that waits."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("uninterrupted")
@pytest.mark.parametrize("make", [scheduler_and_calls, client_and_calls])
def test_another_thread_is_refused_while_a_call_waits(make):
    waits, other = make("ipc:///nowhere/rank0.sock")  # nobody answers
    thread = threading.Thread(target=waits)
    thread.start()
    try:
        with pytest.raises(newmoon.Error, match="another thread") as raised:
            while thread.is_alive():
                other()
    finally:
        thread.join()
    assert raised.value.code == "bad_request"
    other()


class OneHash:
    """A sequence that tells when a lookup has read it."""

    read = False

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.read = True
        return [b"h" * 32][index]


@pytest.mark.usefixtures("uninterrupted")
def test_a_store_in_use_is_not_closed_under_its_user(tmp_path):
    hashes = OneHash()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "store.sock"))
        silent.listen()
        store = newmoon.open_store(f"ipc://{tmp_path}/store.sock", timeout_s=5)
        thread = threading.Thread(target=lambda: outcome_of(lambda: store.lookup(scope(), hashes)))
        thread.start()
        while not hashes.read and thread.is_alive():
            time.sleep(0.01)
        # It waits now for an answer.
        with pytest.raises(newmoon.Error, match="under way") as raised:
            store.close()
        assert raised.value.code == "busy"
        thread.join()
        store.close()


def outcome_of(call):
    with contextlib.suppress(newmoon.Error):
        call()


def test_a_closed_store_says_so():
    store = newmoon.open_store("memory")
    store.close()
    with pytest.raises(newmoon.Error, match="closed"):
        store.stats()


def test_stats_and_scopes(store):
    store.put(scope(), b"h" * 32, BLOCK)
    assert store.stats()["blocks"] == 1
    assert store.stats()["budget_bytes"] == 16 << 20
    (usage,) = store.scopes()
    assert usage["scope"] == scope().id and usage["blocks"] == 1


def test_fence_seals_adopts_and_resets(store):
    fence = newmoon.Fence(namespace="run-7", model="tiny", layout="l")
    assert fence.sealed and fence.scope is None and fence.epoch == 1
    fence.adopt()
    first = fence.scope
    assert first.is_unique and fence.epoch == 2
    store.put(first, b"h" * 32, BLOCK)

    outcome, left = fence.reset()
    assert (outcome, left) == ("new", first)
    assert fence.epoch == 3 and fence.scope != first
    assert store.lookup(fence.scope, [b"h" * 32]) == 0

    store.purge(left)
    with pytest.raises(newmoon.Error) as raised:
        store.put(left, b"i" * 32, BLOCK)
    assert raised.value.code == "fenced"


def test_a_named_scope_is_kept_until_something_ran():
    fence = newmoon.Fence(model="tiny", layout="l")
    fence.adopt(digest=bytes(32))
    verified = fence.scope
    assert not verified.is_unique
    assert fence.reset() == ("kept", None)
    fence.note_scheduled()
    assert fence.reset() == ("new", verified)
    assert fence.seal() is not None
    assert fence.reset() == ("sealed", None)
    fence.adopt(digest=bytes(32))
    assert fence.scope == verified
