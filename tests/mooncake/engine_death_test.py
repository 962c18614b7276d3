"""kill -9 of one of two engine processes in the middle of its puts on a real Mooncake store.

usage: engine_death_test.py NEWMOON MOONCAKE_MASTER MODEL
"""

import json
import subprocess
import sys
import tempfile
import unittest

from processes import Master, until

NEWMOON = ""
MOONCAKE_MASTER = ""
MODEL = ""
RANKS = 2
BLOCK_TOKENS = 16
# When the dead engine's memory and what was put there are given up, and keys half written.
FLAGS = ("--client_ttl=3", "--put_start_discard_timeout_sec=2", "--put_start_release_timeout_sec=3")
ROUNDS_MAX = 5


def prompt(number):
    """Some 600 tokens that no other number has."""
    return "".join(f"def f_{number}_{i}(x):\n    return x * {number} + {i}\n" for i in range(30))


class Engine:
    """`newmoon engine-process`, as a rollout has them (cli/engine_process.h)."""

    def __init__(self, name, store):
        self.name = name
        self.requests = 0
        self.process = subprocess.Popen(
            [NEWMOON, "engine-process", "--model", MODEL, "--name", name, "--store", store,
             "--ranks", str(RANKS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        assert self.receive() == {"ready": True}

    def receive(self):
        reply = json.loads(self.process.stdout.readline())
        if "error" in reply:
            raise AssertionError(f"{self.name}: {reply['error']}")
        return reply

    def send(self, op, **arguments):
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()

    def call(self, op, **arguments):
        self.send(op, **arguments)
        return self.receive()

    def begin(self, text):
        self.requests += 1
        request = {"id": f"{self.name}-{self.requests}", "prompt": text, "max_tokens": 8}
        self.send("generate", requests=[request], flush=True)

    def generate(self, text):
        self.begin(text)
        output, = self.receive()["outputs"]
        return output

    def forget(self):
        """Drops its own cache; its weights stay the same, and so does what is in the store."""
        self.call("pause", mode="abort", clear_cache=True)
        self.call("update", weights="base")
        self.call("reset")
        self.call("resume")

    def saved_blocks(self):
        return sum(rank["saved_blocks"] for rank in self.call("stats")["ranks"])

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class EngineDeath(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.master = Master(MOONCAKE_MASTER, folder.name, *FLAGS)
        self.addCleanup(self.master.kill)
        self.cold = self.start("cold", "none")

    def start(self, name, store):
        engine = Engine(name, store)
        self.addCleanup(engine.kill)
        return engine

    def join(self, name):
        return self.start(name, self.master.url(global_segment_size="256MB"))

    def blocks(self):
        return {one for one in self.master.keys() if one.startswith("nm1:")}

    def kill_in_the_middle_of_puts(self, engine, text):
        """Whether it was: some of what it computed can be read, and not all of it."""
        before = self.blocks()
        tokens = len(self.cold.generate(text)["prompt_token_ids"])
        engine.begin(text)
        until(lambda: self.blocks() - before, "its first put")
        engine.kill()
        put = len(self.blocks() - before)
        return put < tokens // BLOCK_TOKENS * RANKS

    def check(self, engine, text):
        """That it answers as a cold engine does; the tokens it found in the store."""
        output = engine.generate(text)
        self.assertEqual(output["token_ids"], self.cold.generate(text)["token_ids"])
        return output["external_hit_tokens"]

    def test_the_other_engine_answers_right_and_saves_again(self):
        survivor = self.join("survivor")
        for number in range(ROUNDS_MAX):
            text = prompt(number)
            victim = self.join(f"victim{number}")
            if self.kill_in_the_middle_of_puts(victim, text):
                break
        else:
            self.fail("never in the middle of its puts")
        self.check(survivor, text)  # while the master still takes the dead one for alive
        self.check(survivor, prompt(100))

        def finds_again():
            survivor.forget()
            return self.check(survivor, text) > 0

        until(finds_again, "a hit on what the dead one was putting")
        saved = survivor.saved_blocks()
        survivor.generate(prompt(101))
        self.assertGreater(survivor.saved_blocks(), saved)
        newcomer = self.join("newcomer")
        for shared in (text, prompt(101)):
            self.assertGreater(self.check(newcomer, shared), 0)


if __name__ == "__main__":
    NEWMOON, MOONCAKE_MASTER, MODEL, *rest = sys.argv[1:]
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
