"""A mooncake_master on 127.0.0.1 for one test, of the wheel in this environment."""

import contextlib
import importlib.util
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator


class MooncakeMaster:
    def __init__(self, log: pathlib.Path):
        spec = importlib.util.find_spec("mooncake")
        assert spec is not None and spec.submodule_search_locations, "Mooncake's wheel is not installed"
        self.program = pathlib.Path(next(iter(spec.submodule_search_locations)), "mooncake_master")
        self.log = log
        self.process: subprocess.Popen | None = None
        with claimed_port() as rpc, claimed_port() as metrics:
            self.port, self.metrics_port = rpc.getsockname()[1], metrics.getsockname()[1]
            self.start()

    def url(self, **options: str) -> str:
        wanted = {"metrics_port": self.metrics_port, "local_hostname": "127.0.0.1"} | options
        tail = "&".join(f"{name}={value}" for name, value in wanted.items())
        return f"mooncake://127.0.0.1:{self.port}?{tail}"

    def start(self) -> None:
        command = [
            str(self.program), "--logtostderr", "--rpc_address=127.0.0.1",
            f"--rpc_port={self.port}", "--metrics_host=127.0.0.1",
            f"--metrics_port={self.metrics_port}", "--default_kv_lease_ttl=500",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=self.log.open("a"), stderr=subprocess.STDOUT, process_group=0
        )
        deadline = time.monotonic() + 20
        while not (answers(self.port) and answers(self.metrics_port)):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(20)
            self.process = None

    def __enter__(self) -> "MooncakeMaster":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def claimed_port() -> socket.socket:
    """Bound to a port that nobody else is given while it is open, and that a server which is told
    of it can bind all the same: with SO_REUSEADDR, as long as this one does not listen."""
    claimed = socket.socket()
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    claimed.bind(("127.0.0.1", 0))
    return claimed


@contextlib.contextmanager
def running_store(kind: str) -> Iterator[str]:
    """What to name as `store`: memory, or a Mooncake of its own."""
    if kind == "memory":
        yield kind
        return
    with tempfile.TemporaryDirectory() as folder, MooncakeMaster(pathlib.Path(folder, "log")) as master:
        yield master.url(global_segment_size="512MB", local_buffer_size="128MB")


def answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
