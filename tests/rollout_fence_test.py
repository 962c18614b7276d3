"""`newmoon ctl fence` of one rank of an engine of `newmoon rollout`, and later of the other one.

usage: rollout_fence_test.py NEWMOON
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

NEWMOON = ""
CYCLES = 9  # the weights return after four


class Rollout:
    """One engine of two ranks."""

    def __init__(self, folder):
        self.folder = folder
        self.json_path = os.path.join(folder, "rollout.json")
        problems = os.path.join(folder, "problems.jsonl")
        with open(problems, "w") as file:
            for i in range(50):  # short, so that a cycle takes a moment
                prompt = f'def add_{i}(x):\n    """Adds {i} to x, a whole number, slowly."""\n'
                json.dump({"prompt": prompt, "canonical_solution": f"    return x + {i}\n"}, file)
                file.write("\n")
        self.process = subprocess.Popen(
            [NEWMOON, "rollout", "--problems", problems, "--engines", "1", "--ranks", "2",
             "--shots", "1", "--requests", "4", "--max-tokens", "4", "--cycles", str(CYCLES),
             "--json", self.json_path],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": folder},
        )
        self.errors = ""

    def wait_for_cycle(self, number):
        """Until its weights have been written."""
        for line in self.process.stderr:
            self.errors += line
            if f"cycle {number}/{CYCLES} generating" in line:
                return
        raise AssertionError(f"ended before cycle {number}:\n{self.errors}")

    def ctl(self, rank, *command):
        [socket] = glob.glob(f"{self.folder}/*/*/lookup-engine0-rank{rank}.sock")
        return subprocess.run(
            [NEWMOON, "ctl", "--endpoint", f"ipc://{socket}", *command],
            check=True, timeout=60, stdout=subprocess.PIPE, text=True,
        ).stdout

    def saved_blocks(self):
        return json.loads(self.ctl(0, "stats", "--json"))["saved_blocks"]

    def end(self):
        output, errors = self.process.communicate(timeout=300)
        return self.process.returncode, output + self.errors + errors

    def report(self):
        with open(self.json_path) as file:
            return json.load(file)

    def kill(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=60)
        self.process.stdout.close()
        self.process.stderr.close()


class RankFencedAlone(unittest.TestCase):
    def test_the_run_goes_on_and_finds_named_weights_once_the_other_rank_is_fenced(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        rollout = Rollout(folder.name)
        self.addCleanup(rollout.kill)
        rollout.wait_for_cycle(2)
        rollout.ctl(1, "fence")
        rollout.wait_for_cycle(3)
        saved = rollout.saved_blocks()
        rollout.wait_for_cycle(6)
        self.assertGreater(rollout.saved_blocks(), saved, "the external cache is used")
        rollout.ctl(0, "fence")
        code, said = rollout.end()

        self.assertEqual(code, 1, said)
        self.assertIn("a return to earlier weights found nothing cached", said)
        report = rollout.report()
        self.assertEqual(len(report["cycles"]), CYCLES)
        self.assertEqual(report["differing_requests"], 0, said)
        self.assertGreater(report["compared_requests"], 0)
        found = [cycle["first_engine_external_hit_tokens"] for cycle in report["cycles"]]
        self.assertEqual(found[4], 0, found)
        self.assertGreater(found[8], 0, found)


if __name__ == "__main__":
    NEWMOON, *rest = sys.argv[1:]
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
