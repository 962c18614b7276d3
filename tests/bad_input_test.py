"""Bad input to `newmoon`: one clear line that names the thing, exit code 2, nothing left running.

usage: bad_input_test.py NEWMOON [MODEL]     (MODEL: a good GGUF; its cases are left out without it)
"""

import os
import subprocess
import sys
import tempfile
import unittest

NEWMOON = ""
MODEL = ""


def run(*arguments, environment=None):
    return subprocess.run(
        [NEWMOON, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )


class BadInput(unittest.TestCase):
    def refused(self, *arguments, names, environment=None):
        result = run(*arguments, environment=environment)
        lines = [line for line in result.stderr.splitlines() if line.startswith("newmoon")]
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(names, lines[0])

    def test_unknown_option(self):
        self.refused("store-server", "--endpoint", "ipc:///tmp/x", "--nope", names="--nope")

    def test_unknown_command(self):
        self.refused("nope", names="--help")

    def test_store_without_budget(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(
                "store-server", "--endpoint", f"ipc://{folder}/s/store.sock", "--store-bytes", "0",
                names="--store none",
            )
            self.assertEqual(os.listdir(folder), [])  # nothing half-started

    def test_unwritable_socket_folder(self):
        self.refused(
            "store-server", "--endpoint", "ipc:///proc/newmoon/store.sock", names="/proc/newmoon"
        )

    def test_endpoint_of_another_kind(self):
        self.refused("store-server", "--endpoint", "tcp://127.0.0.1:1", names="ipc://PATH")

    def test_missing_preload(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(
                "lookup-server", "--endpoint", f"ipc://{folder}/s/l.sock",
                "--preload", f"{folder}/missing", names=f"{folder}/missing",
            )

    def test_seeds_backwards(self):
        self.refused("sim", "--seeds", "5..1", names="--seeds")

    def test_bench_out_of_range(self):
        self.refused("bench", "lookup", "--blocks", "0", names="--blocks")

    def test_unwritable_json(self):
        self.refused(
            "bench", "lookup", "--blocks", "1", "--json", "/proc/newmoon.json",
            names="/proc/newmoon.json",
        )


class BadModelInput(BadInput):
    """The commands that need llama.cpp."""

    def test_missing_gguf(self):
        self.refused("rollout", "--model", "/missing.gguf", names="/missing.gguf")

    def test_broken_gguf(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as broken, open(MODEL, "rb") as model:
            broken.write(model.read(200_000))
            broken.flush()
            self.refused("rollout", "--model", broken.name, names=broken.name)

    def test_prompt_longer_than_the_context(self):
        self.refused(
            "rollout", "--cycles", "1", "--requests", "4", "--shots", "16", names="context"
        )

    def test_rollout_without_budget(self):
        self.refused("rollout", "--store-bytes", "0", names="--store none")

    def test_unknown_fault(self):
        self.refused("rollout", "--faults", "put:nope", names="nope")

    def test_missing_problems(self):
        self.refused("rollout", "--problems", "/missing.jsonl", names="/missing.jsonl")

    def test_out_of_range(self):
        self.refused("rollout", "--ranks", "31", names="--ranks")

    def test_unwritable_temporary_folder(self):
        self.refused("rollout", names="/proc/newmoon", environment={"TMPDIR": "/proc/newmoon"})


if __name__ == "__main__":
    NEWMOON, *rest = sys.argv[1:]
    cases = [BadInput]
    if rest:
        MODEL = rest[0]
        cases = [BadModelInput]  # which holds the others' cases too
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases
    )
    sys.exit(0 if unittest.TextTestRunner().run(suite).wasSuccessful() else 1)
