"""Processes that a test needs beside its own: started on sockets of a folder of the test's, and
ended with it."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest


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
        [str(part) for part in command], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{command[0]} ended with code {process.wait(30)} before it served"
        yield process
    finally:
        end(process)


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


def session_members(session: int) -> list[int]:
    """Processes of the session that are not merely waiting to be reaped."""
    members = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name: state, parent, group, session.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                members.append(int(stat.parent.name))
    return members
