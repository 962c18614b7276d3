"""`newmoon rollout` on a real Mooncake store whose master dies, hangs and returns, and signals.

usage: rollout_faults_test.py NEWMOON MOONCAKE_MASTER
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from processes import Master, until

NEWMOON = ""
MOONCAKE_MASTER = ""
# What a call of the wheel waits for a dead master.
WHEEL_WAITS_S = 4.3
ENGINES = 2
# What a rollout gives an engine to end before it kills it (cli/child_process.h), one after the
# other; MooncakeOptions::stop_timeout is as long.
STOP_TIMEOUT_S = 5
REQUESTS = 4
LEFT_ALONE = "is left alone until it answers again"
BACK = "answers again, after"


def descendants_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return children + [pid for child in children for pid in descendants_of(child)]


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Rollout:
    """One that runs, with its standard error read as it comes."""

    def __init__(self, folder, store, cycles):
        self.json_path = os.path.join(folder, "rollout.json")
        self.temporary = os.path.join(folder, "tmp")
        os.mkdir(self.temporary)
        problems = os.path.join(folder, "problems.jsonl")
        with open(problems, "w") as file:
            for i in range(100):  # short, so that a cycle takes a moment
                prompt = f'def add_{i}(x):\n    """Adds {i} to x, a whole number, slowly."""\n'
                solution = f"    return x + {i}\n"
                json.dump({"prompt": prompt, "canonical_solution": solution}, file)
                file.write("\n")
        self.process = subprocess.Popen(
            [NEWMOON, "rollout", "--store", store, "--problems", problems, "--engines", str(ENGINES),
             "--ranks", "1", "--shots", "1", "--requests", str(REQUESTS), "--max-tokens", "4",
             "--cycles", str(cycles), "--json", self.json_path],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": self.temporary},
        )
        self.lines = []  # (seconds, line)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def errors(self):
        return "\n".join(line for _, line in self.lines)

    def times(self, text):
        return [moment for moment, line in list(self.lines) if text in line]

    def wait_for(self, text, count=1):
        until(lambda: len(self.times(text)) >= count or self.process.poll() is not None, text)
        if len(self.times(text)) < count:
            raise AssertionError(f"ended without '{text}':\n{self.errors()}")

    def cycle(self):
        """The cycle that it is in, from 1."""
        found = re.findall(r"cycle (\d+)/", self.errors())
        return int(found[-1]) if found else 0

    def wait_for_cycle(self, number):
        until(lambda: self.cycle() >= number or self.process.poll() is not None, "a cycle")

    def seconds_of(self, cycle):
        began = self.times(f"cycle {cycle}/")[0]
        return self.times(f"cycle {cycle + 1}/")[0] - began

    def end(self):
        """The exit code and the standard output."""
        output = self.process.stdout.read()
        code = self.process.wait(timeout=60)
        self.reader.join()
        return code, output

    def report(self):
        with open(self.json_path) as file:
            return json.load(file)


class RolloutFaults(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start_master(self):
        master = Master(MOONCAKE_MASTER, self.folder)
        self.addCleanup(master.kill)
        return master

    def start_rollout(self, store, cycles=8):
        rollout = Rollout(self.folder, store, cycles)
        self.addCleanup(rollout.kill)
        return rollout

    def whole_cycles(self, rollout, count):
        """The next ones that begin after now, from 1; returns once they are over."""
        first = rollout.cycle() + 1
        rollout.wait_for_cycle(first + count)
        return list(range(first, first + count))

    def outage(self, rollout, cause, number):
        """The cycles without the store in its `number`th outage."""
        cause()
        rollout.wait_for(LEFT_ALONE, ENGINES * number)
        return self.whole_cycles(rollout, 2)

    def recovery(self, rollout, cause, number):
        cause()
        rollout.wait_for(BACK, ENGINES * number)
        return self.whole_cycles(rollout, 1)

    def test_master_hangs_and_goes_on_dies_and_returns(self):
        cycles = 20
        master = self.start_master()
        rollout = self.start_rollout(master.url(global_segment_size="128MB"), cycles)
        rollout.wait_for_cycle(3)
        with_store, without = [1, 2], []
        without += self.outage(rollout, lambda: master.send(signal.SIGSTOP), 1)
        with_store += self.recovery(rollout, lambda: master.send(signal.SIGCONT), 1)
        without += self.outage(rollout, master.kill, 2)
        with_store += self.recovery(rollout, master.start, 2)
        code, output = rollout.end()

        report = rollout.report()
        self.assertEqual(report["differing_requests"], 0, output)
        self.assertGreater(report["compared_requests"], cycles * REQUESTS)
        # Cycles without a hit are all that it has to complain about.
        self.assertIn("a cycle had no external hit", output)
        self.assertEqual(code, 1, rollout.errors())
        hits = [cycle["external_hit_tokens"] for cycle in report["cycles"]]
        self.assertEqual([hits[cycle - 1] for cycle in without], [0] * len(without), hits)
        self.assertTrue(all(hits[cycle - 1] > 0 for cycle in with_store), (with_store, hits))
        # A line as it is left alone and one as it is back, of each engine.
        self.assertEqual(len(rollout.times(LEFT_ALONE)), 2 * ENGINES, rollout.errors())
        self.assertEqual(len(rollout.times(BACK)), 2 * ENGINES, rollout.errors())
        for cycle in without:
            # Each of its requests looks up and saves.
            self.assertLess(rollout.seconds_of(cycle), REQUESTS * WHEEL_WAITS_S, cycle)

    def ended(self, rollout, cause):
        """What a rollout says that is ended in its second cycle, with nothing left of it."""
        rollout.wait_for_cycle(2)
        family = descendants_of(rollout.process.pid)
        self.assertEqual(len(family), ENGINES + 1)  # and its master
        began = time.monotonic()
        cause(rollout.process.pid, family)
        code, _ = rollout.end()
        # Twice that: the machine may be busy. The wheel alone needs longer with a master that hangs.
        self.assertLess(time.monotonic() - began, 2 * ENGINES * STOP_TIMEOUT_S, rollout.errors())
        self.assertEqual([pid for pid in family if is_running(pid)], [], rollout.errors())
        self.assertEqual(os.listdir(rollout.temporary), [], rollout.errors())
        lines = [line for _, line in rollout.lines if line.startswith("newmoon")]
        self.assertEqual((code, len(lines)), (2, 1), rollout.errors())
        return lines[0]

    def test_signal_to_the_rollout(self):
        rollout = self.start_rollout("mooncake")
        self.assertIn("stopped by a signal",
                      self.ended(rollout, lambda pid, _: os.kill(pid, signal.SIGTERM)))

    def test_two_signals_while_the_master_hangs(self):
        def cause(pid, family):
            os.kill(family[0], signal.SIGSTOP)
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGINT)

        self.assertIn("stopped by a signal", self.ended(self.start_rollout("mooncake"), cause))

    def test_signal_to_an_engine(self):
        rollout = self.start_rollout("mooncake")
        self.assertIn("engine1",
                      self.ended(rollout, lambda _, family: os.kill(family[-1], signal.SIGTERM)))

    def test_master_of_its_own_dies(self):
        rollout = self.start_rollout("mooncake")
        self.assertIn("the mooncake_master of this run has ended",
                      self.ended(rollout, lambda _, family: os.kill(family[0], signal.SIGKILL)))


if __name__ == "__main__":
    NEWMOON, MOONCAKE_MASTER, *rest = sys.argv[1:]
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
