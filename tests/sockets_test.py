"""`newmoon ctl`, `scopes` and `purge` on sockets of this machine: a rank's and a store's.

usage: sockets_test.py NEWMOON
"""

import shlex
import subprocess
import sys
import tempfile
import unittest

NEWMOON = ""
SCOPE = "00" * 16  # of what `newmoon lookup-server` holds
MISSING = "00" * 15 + "01"


def run(*arguments):
    return subprocess.run(
        [NEWMOON, *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


class OnSockets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def serve(self, command, *more):
        """The endpoint of a server that ends with the test."""
        endpoint = f"ipc://{self.folder}/{command}/it's.sock"  # which a shell has to be told
        process = subprocess.Popen(
            [NEWMOON, command, "--endpoint", endpoint, *more], stdout=subprocess.PIPE, text=True
        )
        self.process = process
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        self.assertIn("serving", process.stdout.readline())
        return endpoint

    def rank(self):
        hashes = f"{self.folder}/hashes"
        with open(hashes, "w") as file:
            file.write("01" * 32 + "\n")
        return self.serve("lookup-server", "--preload", hashes)

    def answered(self, *arguments, code=0):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, result)
        return result.stdout

    def refused(self, *arguments, code):
        result = run(*arguments)
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (code, 1), result)
        return result.stderr

    def follow(self, message):
        """What the command answers that a message names between ` and `."""
        command = shlex.split(message.split("`")[1])
        self.assertEqual(command[0], "newmoon")
        return self.answered(*command[1:])


class Rank(OnSockets):
    def test_options_stand_before_or_behind_the_command(self):
        endpoint = ["--endpoint", self.rank()]
        timeout = ["--timeout-s", "30"]
        for arguments in (
            [*endpoint, *timeout, "ping"], ["ping", *endpoint, *timeout],
            [*timeout, "ping", *endpoint], ["ping", f"--endpoint={endpoint[1]}"],
            ["ping", *endpoint, "--log-level", "debug"],
        ):
            self.assertIn("alive", self.answered("ctl", *arguments))
        self.assertIn('"store_blocks": 1', self.answered("ctl", "stats", "--json", *endpoint))
        self.assertIn("purging 1 scopes, 1 blocks",
                      self.answered("ctl", "purge", "--scope", SCOPE, *endpoint, "--yes"))

    def test_a_purge_says_how_to_see_how_it_goes(self):
        said = self.answered("ctl", "--endpoint", self.rank(), "purge", "--scope", SCOPE, "--yes")
        self.assertIn("store_unfinished_purges", self.follow(said))

    def test_a_purge_of_what_is_not_there_says_what_lists_what_is(self):
        endpoint = self.rank()
        for wanted, code in (
            (["--scope", MISSING], 1), (["--namespace", "run-7"], 1), (["--scope", "xyz"], 2),
        ):
            for yes in ([], ["--yes"]):
                said = self.refused("ctl", "--endpoint", endpoint, "purge", *wanted, *yes, code=code)
                self.assertIn(SCOPE, self.follow(said))

    def test_one_that_was_killed_is_not_waited_for(self):
        endpoint = self.rank()
        self.process.kill()
        self.process.wait(30)
        for path in (endpoint, f"ipc://{self.folder}", f"ipc://{self.folder}/hashes"):
            said = self.refused("ctl", "ping", "--endpoint", path, "--timeout-s", "1000", code=2)
            self.assertIn(f"nobody listens at {path}", said)

    def test_is_no_store(self):
        endpoint = self.rank()
        for command in (["scopes"], ["purge", "--scope", SCOPE, "--yes"]):
            said = self.refused(*command, "--store", endpoint, code=2)
            self.assertIn(f"{endpoint} is the socket of an engine, not of a store", said)
            self.assertIn(SCOPE, self.follow(said))


class Store(OnSockets):
    def test_a_purge_of_what_is_not_there_says_what_lists_what_is(self):
        endpoint = self.serve("store-server")
        for wanted, code in (
            (["--scope", MISSING], 1), (["--namespace", "run-7"], 1), (["--scope", "xyz"], 2),
        ):
            said = self.refused("purge", "--store", endpoint, *wanted, "--yes", code=code)
            self.assertEqual(self.follow(said), "no scopes\n")

    def test_is_no_engine(self):
        endpoint = self.serve("store-server")
        for command in (["ping"], ["fence"], ["stats"], ["scopes"]):
            said = self.refused("ctl", *command, "--endpoint", endpoint, "--timeout-s", "30", code=2)
            self.assertIn(f"{endpoint} is the socket of a store, not of an engine", said)
            self.assertEqual(self.follow(said), "no scopes\n")
        for wanted in (["--scope", SCOPE], ["--namespace", "run-7"]):
            said = self.refused("ctl", "purge", *wanted, "--endpoint", endpoint, code=2)
            command = shlex.split(said.split("`")[1])
            self.assertEqual(command, ["newmoon", "purge", "--store", endpoint, *wanted])
            self.assertIn("not in the store", self.refused(*command[1:], code=1))


if __name__ == "__main__":
    NEWMOON, *rest = sys.argv[1:]
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
