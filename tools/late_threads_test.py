"""That late_threads makes programs fail that assume speed, and no other.

Usage: late_threads_test.py LIBRARY PROGRAM (late_threads_planted)
"""

import os
import subprocess
import sys
import unittest

SEEDS = range(1, 101)


def failing_seed(program):
    """The first seed with which it fails, or None."""
    for seed in SEEDS:
        environment = {**os.environ, "LD_PRELOAD": LIBRARY, "NEWMOON_LATE_SEED": str(seed)}
        if subprocess.run([PROGRAM, program], env=environment, timeout=60).returncode:
            return seed
    return None


class LateThreadsTest(unittest.TestCase):
    def test_a_thread_that_is_thought_to_have_begun(self):
        self.assertIsNotNone(failing_seed("begun"))

    def test_a_thread_that_is_thought_not_to_have_ended(self):
        self.assertIsNotNone(failing_seed("not-ended"))

    def test_a_program_that_waits_holds_with_every_seed(self):
        self.assertIsNone(failing_seed("waits"))


if __name__ == "__main__":
    LIBRARY, PROGRAM = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1])
