"""A mooncake_master on 127.0.0.1 for one test, of the wheel in this environment."""

import importlib.util
import pathlib
import signal
import socket
import subprocess
import time


class MooncakeMaster:
    def __init__(self, log: pathlib.Path):
        spec = importlib.util.find_spec("mooncake")
        assert spec is not None and spec.submodule_search_locations, "Mooncake's wheel is not installed"
        self.program = pathlib.Path(next(iter(spec.submodule_search_locations)), "mooncake_master")
        self.log = log
        self.port, self.metrics_port = free_port(), free_port()
        self.process: subprocess.Popen | None = None
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
            command, stdout=self.log.open("a"), stderr=subprocess.STDOUT, start_new_session=True
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


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
