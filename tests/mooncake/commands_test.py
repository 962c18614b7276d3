"""`newmoon scopes`, `purge` and benches on a real Mooncake store, as an operator runs them.

usage: commands_test.py NEWMOON MOONCAKE_MASTER
"""

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from processes import BlackHole, Master, UpstreamClient, until

NEWMOON = ""
MOONCAKE_MASTER = ""
# docs/formats.md, "As text".
SCOPE = "3626c87d812542e43122cfdccb097ad1"
TEXT = ("namespace=run-7 model=Qwen/Qwen3-0.6B layout=block=16;dtype=bf16;tp=2 "
        "weights=label:step-42")
OTHER_SCOPE = "00" * 15 + "02"
FOREIGN_KEY = f"model@tp_rank:0@nm1:{SCOPE}:"
DISCARD_S, RELEASE_S = 2, 3
START_BOUND_S = 60


def key(number, scope=SCOPE):
    return f"nm1:{scope}:t0p0d0g0:{number:064x}"


def hold_key(holder, scope=SCOPE):
    return f"nm1h:{scope}:{int(time.time()) // 60 + 5}:{holder.encode().hex()}"


def ended(process):
    output, errors = process.communicate(timeout=100)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


class OnAMaster(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.master = Master(
            MOONCAKE_MASTER, folder.name, "--default_kv_lease_ttl=200",
            f"--put_start_discard_timeout_sec={DISCARD_S}",
            f"--put_start_release_timeout_sec={RELEASE_S}",
        )
        self.addCleanup(self.master.kill)
        self.url = self.master.url(put_start_discard_timeout_sec=DISCARD_S,
                                   put_start_release_timeout_sec=RELEASE_S)
        wheel_folder = os.path.dirname(os.path.dirname(MOONCAKE_MASTER))
        self.upstream = UpstreamClient(wheel_folder, self.master)
        self.addCleanup(self.upstream.kill)

    def fill(self):
        """Two scopes, one of them described, and a key of another program."""
        for i in range(3):
            self.upstream.put(key(i), "value" * 10)
        self.upstream.put(key(0, OTHER_SCOPE), "value")
        self.upstream.put(f"nm1d:{SCOPE}", TEXT)
        self.upstream.put(FOREIGN_KEY, "theirs")

    def blocks(self, scope=SCOPE):
        return sorted(one for one in self.master.keys() if one.startswith(f"nm1:{scope}:"))

    def start(self, *arguments, stdin=subprocess.DEVNULL):
        process = subprocess.Popen(
            [NEWMOON, *arguments, "--store", self.url], stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        self.addCleanup(process.kill)
        return process

    def run_newmoon(self, *arguments, code=0):
        result = ended(self.start(*arguments))
        self.assertEqual(result.returncode, code, result)
        return result


class Scopes(OnAMaster):
    def test_empty_store(self):
        self.assertEqual(self.run_newmoon("scopes").stdout, "no scopes\n")
        self.assertEqual(json.loads(self.run_newmoon("scopes", "--json").stdout), {"scopes": []})

    def test_table_and_json(self):
        self.fill()
        self.upstream.put(hold_key("engine-a"), "1")
        listed = json.loads(self.run_newmoon("scopes", "--json").stdout)["scopes"]
        other, ours = listed
        self.assertEqual(
            {name: ours[name] for name in ("scope", "blocks", "bytes", "in_use_by", "namespace")},
            {"scope": SCOPE, "blocks": 3, "bytes": 150, "in_use_by": ["engine-a"],
             "namespace": "run-7"})
        self.assertEqual((other["scope"], other["blocks"], other["in_use_by"]),
                         (OTHER_SCOPE, 1, []))
        table = self.run_newmoon("scopes").stdout
        for text in (SCOPE, OTHER_SCOPE, "label:step-42", "engine-a", "(none)"):
            self.assertIn(text, table)

    def test_master_that_is_gone(self):
        self.master.kill()
        errors = self.run_newmoon("scopes", code=2).stderr.splitlines()
        self.assertEqual(len(errors), 1, errors)
        self.assertIn("no master", errors[0])


class Purge(OnAMaster):
    def ask(self, meanwhile, answer):
        """A purge at a terminal: `meanwhile` while the question stands, then the answer."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        process = self.start("purge", "--scope", SCOPE, stdin=theirs)
        os.close(theirs)
        shown = ""
        while not shown.endswith("[y/N] "):
            character = process.stdout.read(1)
            self.assertTrue(character, shown)
            shown += character
        self.assertIn("label:step-42", shown)
        meanwhile()
        os.write(ours, answer.encode() + b"\n")
        return ended(process)

    def test_asks_and_is_told_no(self):
        self.fill()
        for answer in ("n", "", "maybe"):
            result = self.ask(lambda: None, answer)
            self.assertEqual((result.returncode, result.stderr),
                             (1, "newmoon purge: nothing was purged\n"), result)
        self.assertEqual(len(self.blocks()), 3)

    def test_asks_and_is_told_yes(self):
        self.fill()
        result = self.ask(lambda: None, "y")
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("purged 1 scopes, 3 blocks", result.stdout)
        self.assertEqual(self.blocks(), [])
        self.assertEqual(len(self.blocks(OTHER_SCOPE)), 1)
        self.assertIn(FOREIGN_KEY, self.master.keys())

    def test_somebody_comes_while_the_question_stands(self):
        self.fill()
        result = self.ask(lambda: self.upstream.put(hold_key("engine-a"), "1"), "y")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("in use by engine-a: nothing was purged", result.stderr)
        self.assertEqual(len(self.blocks()), 3)

    def test_of_a_script(self):
        self.fill()
        errors = self.run_newmoon("purge", "--scope", SCOPE, code=2).stderr
        self.assertIn("--yes", errors)  # there is no terminal
        self.assertEqual(len(self.blocks()), 3)
        result = self.run_newmoon("purge", "--namespace", "run-7", "--yes")
        self.assertIn("purged 1 scopes, 3 blocks", result.stdout)
        self.assertEqual(self.blocks(), [])
        self.assertEqual(len(self.blocks(OTHER_SCOPE)), 1)
        errors = self.run_newmoon("purge", "--scope", SCOPE, "--yes", code=1).stderr
        self.assertIn(f"scope {SCOPE} is not in the store", errors)

    def test_of_a_scope_in_use(self):
        self.fill()
        self.upstream.put(hold_key("engine-a"), "1")
        errors = self.run_newmoon("purge", "--scope", SCOPE, "--yes", code=1).stderr
        self.assertIn("in use by engine-a: nothing was purged", errors)
        self.assertEqual(len(self.blocks()), 3)
        self.run_newmoon("purge", "--scope", OTHER_SCOPE, "--yes")
        self.assertEqual(self.blocks(OTHER_SCOPE), [])

    def test_does_not_wait_for_what_is_half_written_but_says_so(self):
        self.fill()
        stuck = [key(7), key(8)]
        self.assertEqual(self.upstream.put_start(stuck), [0, 0])
        result = self.run_newmoon("purge", "--scope", SCOPE, "--yes")
        last = result.stdout.splitlines()[-1]
        self.assertRegex(last, r"^nothing is left that can be read; .* within \d+ s, .*--wait$")
        self.assertEqual(self.blocks(), [])
        self.assertEqual(self.upstream.put_end(stuck), [0, 0])
        self.assertEqual(self.blocks(), stuck)  # as it said
        self.run_newmoon("purge", "--scope", SCOPE, "--yes")
        self.assertEqual(self.blocks(), [])

    def test_waits_for_what_is_half_written(self):
        self.fill()
        stuck = [key(7), key(8)]
        self.assertEqual(self.upstream.put_start(stuck), [0, 0])
        purge = self.start("purge", "--scope", SCOPE, "--yes", "--wait")
        until(lambda: not self.blocks(), "the purge")
        self.assertEqual(self.upstream.put_end(stuck), [0, 0])
        result = ended(purge)
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("1 scopes are to be looked at again", result.stderr)
        self.assertNotIn("--wait", result.stdout)
        self.assertEqual(self.blocks(), [])
        self.assertEqual(len(self.blocks(OTHER_SCOPE)), 1)

    def test_who_uses_it_again_meanwhile_keeps_what_he_puts(self):
        self.fill()
        self.url = self.master.url()  # with a master's defaults: minutes
        purge = self.start("purge", "--scope", SCOPE, "--yes", "--wait")
        while "looked at again" not in purge.stderr.readline():
            self.assertIsNone(purge.poll())
        self.upstream.put(hold_key("engine-a"), "1")
        self.upstream.put(key(9), "value")
        result = ended(purge)
        self.assertEqual(result.returncode, 1, result)
        self.assertIn(f"scope {SCOPE} is in use again by engine-a", result.stderr)
        self.assertEqual(self.blocks(), [key(9)])


class Start(OnAMaster):
    """A master that takes the connection and never answers: the wheel alone waits 90 s."""

    def refused(self, arguments, message, **environment):
        # The process ends in the middle of the wheel's setup; what that holds is no leak of ours.
        sanitizer = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
        result = subprocess.run(
            [NEWMOON, *arguments, "--store", self.url], capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=START_BOUND_S,
            env={**os.environ, **sanitizer, **environment},
        )
        lines = result.stderr.splitlines()
        self.assertEqual((result.returncode, len(lines)), (2, 1), result)
        self.assertTrue(lines[0].startswith(f"newmoon {arguments[0]}: "), result)
        self.assertIn(message, lines[0])

    def test_master_that_hangs(self):
        self.master.send(signal.SIGSTOP)
        message = f"no answer in time from the store at {self.master.address()}"
        for arguments in (["scopes"], ["purge", "--scope", SCOPE, "--yes"], ["seed"]):
            self.refused(arguments, message)

    def test_address_where_nothing_answers(self):
        with BlackHole() as address:
            self.url = f"mooncake://{address}"
            self.refused(["scopes"], f"no master: no answer from {address} in time")

    def test_wheel_or_python_missing(self):
        self.refused(["scopes"], "Mooncake's wheel is not in /missing",
                     NEWMOON_MOONCAKE_DIR="/missing")
        self.refused(["scopes"], "cannot load Python 3.11: /missing",
                     NEWMOON_LIBPYTHON="/missing/libpython3.11.so.1.0")

    def test_metrics_port_that_is_another(self):
        self.url = self.master.url(metrics_port=1)
        self.refused(["scopes"], "the option metrics_port says where they are")


class Benches(OnAMaster):
    def bench(self, *arguments):
        path = os.path.join(self.folder, "bench.json")
        self.run_newmoon("bench", *arguments, "--json", path)
        with open(path) as file:
            return json.load(file)["rows"]

    def test_purge(self):
        self.fill()
        before = sorted(self.master.keys())
        row, = self.bench("purge", "--keys", "500")
        self.assertEqual(row["keys"], 500)
        self.assertGreater(row["samples_during"], 0)
        self.assertEqual(sorted(self.master.keys()), before)

    def test_mooncake(self):
        rows = self.bench("mooncake", "--runs", "1", "--blocks", "64", "--keys", "100")
        cases = {row["case"] for row in rows}
        self.assertLessEqual({"put", "get", "put_hashed", "lookup_all_hits",
                              "round_trip_all_misses", "reset"}, cases)


if __name__ == "__main__":
    NEWMOON, MOONCAKE_MASTER, *rest = sys.argv[1:]
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)
