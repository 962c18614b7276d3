"""A mooncake_master and upstream's client, for tests of `newmoon` as a whole."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

UPSTREAM_CLIENT = os.path.join(os.path.dirname(__file__), "upstream_client.py")


def claimed_port():
    """Bound to a port that nobody else is given while it is open, and that a server which is told
    of it can bind all the same: with SO_REUSEADDR, as long as this one does not listen."""
    claimed = socket.socket()
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    claimed.bind(("127.0.0.1", 0))
    return claimed


def until(holds, what):
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"still waiting for {what}")
        time.sleep(0.02)


def is_answered(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class BlackHole:
    """HOST:PORT where what a client sends to connect is lost: nobody accepts, and the queue of
    connections is full."""

    def __enter__(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(0)
        address = self.listener.getsockname()
        self.waiting = [socket.socket() for _ in range(4)]
        for one in self.waiting:
            one.setblocking(False)
            one.connect_ex(address)
        return f"127.0.0.1:{address[1]}"

    def __exit__(self, *exception):
        for one in (self.listener, *self.waiting):
            one.close()


class Master:
    def __init__(self, program, folder, *flags):
        self.log = os.path.join(folder, "master.log")
        self.process = None
        with claimed_port() as rpc, claimed_port() as metrics:
            self.port, self.metrics_port = rpc.getsockname()[1], metrics.getsockname()[1]
            self.command = [
                program, "--logtostderr", "--minloglevel=1",
                "--rpc_address=127.0.0.1", f"--rpc_port={self.port}",
                "--metrics_host=127.0.0.1", f"--metrics_port={self.metrics_port}", *flags,
            ]
            self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        until(lambda: is_answered(self.port) and is_answered(self.metrics_port), "the master")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def send(self, number):
        self.process.send_signal(number)

    def address(self):
        return f"127.0.0.1:{self.port}"

    def url(self, **options):
        wanted = {"metrics_port": self.metrics_port, "local_buffer_size": "32MB"} | options
        return f"mooncake://{self.address()}?" + "&".join(
            f"{name}={value}" for name, value in wanted.items())

    def keys(self):
        """Those that can be read."""
        url = f"http://127.0.0.1:{self.metrics_port}/get_all_keys"
        with urllib.request.urlopen(url, timeout=20) as reply:
            return reply.read().decode().split()


class UpstreamClient:
    """The wheel in a process of its own (upstream_client.py), which lends 16 MiB."""

    def __init__(self, wheel_folder, master):
        self.process = subprocess.Popen(
            [sys.executable, UPSTREAM_CLIENT, wheel_folder, master.address()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        if self.reply()["code"] != 0:
            raise AssertionError("upstream's setup failed")

    def reply(self):
        return json.loads(self.process.stdout.readline())

    def call(self, name, **arguments):
        self.process.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.reply()

    def put(self, key, value):
        if self.call("put", key=key, value=value)["code"] != 0:
            raise AssertionError(f"upstream's put of {key} failed")

    def put_start(self, keys):
        """A put under way: begun, and not readable before put_end()."""
        return self.call("put_start", keys=keys, bytes=64)["codes"]

    def put_end(self, keys):
        return self.call("put_end", keys=keys)["codes"]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
