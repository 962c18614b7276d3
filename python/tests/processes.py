"""Processes that a test needs beside its own: started on sockets of a folder of the test's, and
ended with it. Each leads a process group, so that what it starts is found. Not a session: a kernel
may share its cores between sessions, and one that spins would starve the others (autogroups)."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

HERE = pathlib.Path(__file__).parent

# Of the flows that a module's tests are about: name, and what all processes of it wrote. Shown with
# each test that fails (conftest.py), since what a check finds wrong may have been logged long before.
flow_logs: list[tuple[str, str]] = []


def binary() -> str:
    """build/release/newmoon."""
    path = os.environ.get("NEWMOON_BINARY")
    if not path:
        pytest.fail("NEWMOON_BINARY is not set; run ./dev test-vllm")
    return path


@contextlib.contextmanager
def running(*command: str | pathlib.Path) -> Iterator[subprocess.Popen]:
    """A program that says one line on its standard output once it serves."""
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, process_group=0, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{command[0]} ended with code {process.wait(30)} before it served"
        yield process
    finally:
        end(process)


@contextlib.contextmanager
def store_server(folder: str) -> Iterator[tuple[str, str]]:
    """`newmoon store-server` on a socket in the folder: its URL and its pid."""
    url = f"ipc://{folder}/store/s.sock"
    with running(binary(), "store-server", "--endpoint", url, "--store-bytes", str(1 << 30)) as server:
        yield url, str(server.pid)


def end(process: subprocess.Popen) -> None:
    """Stopped ones and those that do not listen too."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def python(script: str, *arguments: str | pathlib.Path) -> tuple[str | pathlib.Path, ...]:
    return (sys.executable, "-c", script, *arguments)


def group_members(group: int) -> list[int]:
    """Processes of the group that are not merely waiting to be reaped."""
    members = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name: state, parent, group.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                members.append(int(stat.parent.name))
    return members


def end_group(group: int) -> None:
    """Whatever is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def run_flow(
    script: str,
    *arguments: str,
    base: str | None = None,
    path: tuple[pathlib.Path, ...] = (),
    **environment: str,
) -> dict[str, dict]:
    """The steps that a script beside this one tells in a line "FLOW {...}". All its processes
    end with it. `base`: the folder of vLLM's sockets and ours. `path`: what it imports from, too."""
    paths = [str(HERE), *map(str, path), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    if base is not None:
        environment["VLLM_RPC_BASE_PATH"] = base
    # Files, which are there to be shown when a process hangs, too.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as logged:
        process = subprocess.Popen(
            [sys.executable, script, *arguments],
            cwd=HERE,
            env=os.environ | environment,
            stdout=said,
            stderr=logged,
            process_group=0,
        )
        try:
            code = process.wait(timeout=600)
            wait_until(lambda: not group_members(process.pid), "its processes were to end")
        finally:
            end_group(process.pid)
            out, err = (text_of(file) for file in (said, logged))
            flow_logs.append((" ".join([script, *arguments[1:]]), out + err))
    told = [line for line in out.splitlines() if line.startswith("FLOW ")]
    assert code == 0 and told, f"{script} ended with code {code}; its log is shown below"
    return json.loads(told[0].removeprefix("FLOW "))


def text_of(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def wait_until_halted(pid: int) -> None:
    """Stopped, or dead and not yet reaped, with all its threads: on a busy machine signals take
    their time."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not thread_states(pid) <= set("TZX"):
        time.sleep(0.001)


def wait_until_asleep(pid: int) -> None:
    """Its first thread waits, and has not run for a while."""

    def runs() -> list[str]:
        lines = pathlib.Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
        return [line for line in lines if line.startswith("State:\tR") or "ctxt_switches" in line]

    def sleeps() -> bool:
        before = runs()
        time.sleep(0.3)
        return len(before) == 2 and runs() == before

    wait_until(sleeps, "it was to sleep")


def thread_states(pid: int) -> set[str]:
    states = set()
    for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states
