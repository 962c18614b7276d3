"""Bad input to `newmoon`: one clear line that names the thing, exit code 2, nothing left running.

usage: bad_input_test.py NEWMOON [MODEL]     (MODEL: a good GGUF; its cases are left out without it)
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

NEWMOON = ""
MODEL = ""


def run(*arguments, environment=None, folder=None):
    return subprocess.run(
        [NEWMOON, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return children.read().split()


class BadInput(unittest.TestCase):
    def refused(self, *arguments, names, environment=None, folder=None):
        result = run(*arguments, environment=environment, folder=folder)
        lines = [line for line in result.stderr.splitlines() if line.startswith("newmoon")]
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(names, lines[0])
        return result

    def refused_as(self, *arguments, line):
        result = self.refused(*arguments, names="")
        self.assertEqual(result.stderr, line + "\n")
        self.assertEqual(result.stdout, "")

    def test_unknown_option(self):
        self.refused_as("store-server", "--endpoint", "ipc:///tmp/x", "--nope=5",
                        line="newmoon store-server: unknown option --nope; "
                             "see newmoon store-server --help")
        self.refused_as("ctl", "ping", "--nope", "5",
                        line="newmoon ctl ping: unknown option --nope; see newmoon ctl ping --help")
        self.refused_as("scopes", "--sture", "x",
                        line="newmoon scopes: unknown option --sture; see newmoon scopes --help")

    def test_option_before_its_command(self):
        self.refused_as("--store", "x", "scopes",
                        line="newmoon scopes: --store is to stand behind the command; "
                             "see newmoon scopes --help")

    def test_unknown_command(self):
        self.refused_as("ctl", "nope", "--endpoint", "ipc:///tmp/x",
                        line="newmoon ctl: unknown command 'nope'; there are ping, fence, stats, "
                             "scopes, purge; see newmoon ctl --help")
        for parent in ([], ["ctl"], ["ctl", "--endpoint", "ipc:///tmp/x"], ["bench"]):
            names = " ".join(["newmoon", *parent[:1]])
            for word in ("nope", ""):
                result = self.refused(*parent, word, names=f"{names}: unknown command '{word}'")
                self.assertIn(f"; see {names} --help", result.stderr)

    def test_missing_command(self):
        for parent, given in (
            ("newmoon", []), ("newmoon", ["--log-level", "debug"]), ("newmoon ctl", ["ctl"]),
            ("newmoon ctl", ["ctl", "--endpoint", "ipc:///tmp/x"]), ("newmoon bench", ["bench"]),
        ):
            result = self.refused(*given, names=f"{parent}: a command is missing: ")
            self.assertIn(f"; see {parent} --help", result.stderr)
            self.assertNotIn("engine-process", result.stderr)  # not for people

    def test_missing_option(self):
        self.refused_as("ctl", "ping", line="newmoon ctl ping: --endpoint is required; "
                                            "see newmoon ctl --help")
        self.refused_as("scopes", line="newmoon scopes: --store is required; "
                                       "see newmoon scopes --help")

    def test_too_many_commands(self):
        self.refused("ctl", "--endpoint", "ipc:///tmp/x", "ping", "stats", names="unexpected 'stats'")
        self.refused("scopes", "--store", "memory", "purge", names="unexpected 'purge'")

    def every_option(self):
        """(command, option) of all that take a value, as the commands' --help has them."""
        commands = [[]]
        for command in commands:
            shown = run(*command, "--help").stdout
            below = shown.partition("\nSubcommands:\n")[2]
            commands += [[*command, name] for name in re.findall(r"^  (\S+)", below, re.MULTILINE)]
            for option, kind in re.findall(r"^  (?:-\w,)?(--[\w-]+) ?(\S*)", shown, re.MULTILINE):
                if kind.isupper() or kind.startswith(("TEXT", "UINT", "INT", "FLOAT")):
                    yield command, option
        self.assertGreater(len(commands), 15, commands)

    def test_a_value_that_is_none(self):
        folder = tempfile.TemporaryDirectory()  # for what --json would write
        self.addCleanup(folder.cleanup)
        seen = 0
        for command, option in self.every_option():
            name = " ".join(["newmoon", *command])
            for given, said in (
                ([f"{option}="], "the value is empty"),
                ([option, ""], "the value is empty"),
                ([option, "--log-level=debug"], "a value is missing before --log-level=debug"),
                ([option], "a value is missing"),
            ):
                with self.subTest(command=command, given=given):
                    self.refused(*command, *given, folder=folder.name,
                                 names=f"{name}: {option}: {said}; see {name} --help")
            seen += 1
        self.assertGreater(seen, 30)  # also where llama.cpp is left out

    def test_a_value_that_is_there_twice(self):
        for command in (["scopes", "--store"], ["ctl", "ping", "--endpoint"], ["sim", "--threads"]):
            option = command[-1]
            self.refused(*command, "1", option, "2", names=f"{option} is there more than once; see")
        self.refused("ctl", "--endpoint", "a", "ping", "--endpoint", "b",
                     names="newmoon ctl ping: --endpoint is there more than once; see newmoon ctl --help")

    def test_values_of_another_kind(self):
        engine = ["--endpoint", "ipc:///tmp/x"]
        for arguments, said in (
            (["--log-level", "loud", "sim"], "--log-level: 'loud' is not debug, info, warning or error"),
            (["ctl", "ping", *engine, "--timeout-s", "soon"],
             "--timeout-s: 'soon' is not a number of seconds from 0.1 to 3600"),
            (["purge", "--store", "ipc:///tmp/x", "--scope", "x", "--deadline-s", "-1"],
             "--deadline-s: '-1' is not a number of seconds from 0 to 86400"),
            (["ctl", "purge", *engine, "--yes=maybe"], "--yes takes no value"),
            (["ctl", "purge", *engine, "--yes=2"], "--yes takes no value"),
            (["ctl", "purge", *engine, "--yes=true"], "newmoon ctl purge: unexpected 'true'"),
            (["purge", "--store", "ipc:///tmp/x", "--wait=3"], "--wait takes no value"),
            (["scopes", "--store", "ipc:///tmp/x", "--json=false"], "--json takes no value"),
            (["scopes", "--store", "/tmp/x"], "'/tmp/x' is unknown; use ipc://PATH or mooncake://HOST:PORT"),
        ):
            self.refused(*arguments, names=said)

    def test_a_command_that_went_for_a_value(self):
        said = "newmoon ctl: --endpoint: a value is missing before "
        self.refused_as("ctl", "--endpoint", "ping", line=f"{said}ping; see newmoon ctl --help")
        self.refused_as("ctl", "--endpoint", "stats", "--json",
                        line=f"{said}stats; see newmoon ctl --help")

    def test_a_value_behind_the_end_of_the_options(self):
        self.refused_as("scopes", "--store", "--", "ipc:///tmp/x",
                        line="newmoon scopes: --store: a value is missing before --; "
                             "see newmoon scopes --help")

    def test_no_namespace_is_no_reason_to_purge(self):
        store = ["--store", "ipc:///tmp/newmoon-missing/s"]
        self.refused_as("purge", *store, "--namespace=", "--yes",
                        line="newmoon purge: --namespace: the value is empty; "
                             "see newmoon purge --help")
        self.refused_as("purge", *store, "--namespace", "--yes",
                        line="newmoon purge: --namespace: a value is missing before --yes; "
                             "see newmoon purge --help")

    def test_numbers_that_do_not_fit(self):
        for value in ("-1", "99999999999999999999", "", "4GB"):
            self.refused(
                "store-server", "--endpoint", "ipc:///tmp/x", "--store-bytes", value,
                names="--store-bytes",
            )
            self.refused("sim", "--seed", value, names="--seed")

    def test_json_that_nobody_writes(self):
        self.refused("sim", "--seed", "1", "--json", "/tmp/x", names="--json")

    def test_full_standard_output(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                [NEWMOON, "sim", "--seed", "1"], stdout=full, stderr=subprocess.PIPE, text=True,
                timeout=60,
            )
        self.assertEqual(result.returncode, 2, result)
        self.assertIn("standard output", result.stderr)

    def test_store_without_budget(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(
                "store-server", "--endpoint", f"ipc://{folder}/s/store.sock", "--store-bytes", "0",
                names="--store-bytes",
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

    def test_seed_walk_on_a_store_that_is_not_there(self):
        for store, names in (
            ("ipc:///tmp/x", "ipc:///tmp/x"),
            ("mooncake://", "MOONCAKE_CONFIG_PATH"),
            ("mooncake://127.0.0.1", "HOST:PORT"),
            ("mooncake://127.0.0.1:1?lease=1", "lease"),
            ("mooncake://127.0.0.1:1?local_buffer_size=much", "local_buffer_size"),
            ("mooncake://127.0.0.1:1", "no master"),
        ):
            self.refused("seed", "--store", store, names=names,
                         environment={"MOONCAKE_CONFIG_PATH": ""})
        self.refused("seed", "--store", "mooncake", names="NEWMOON_MOONCAKE_DIR",
                     environment={"NEWMOON_MOONCAKE_DIR": "/missing"})

    def test_looking_into_a_store_that_is_not_there(self):
        scope = ["--scope", "00" * 16]
        for command, *more in (["scopes"], ["purge", *scope]):
            for store, names in (
                ("memory", "ipc://PATH"),
                ("none", "ipc://PATH"),
                ("nope", "nope"),
                ("ipc:///tmp/newmoon-missing/s", "/tmp/newmoon-missing/s"),
                ("mooncake://127.0.0.1", "HOST:PORT"),
                ("mooncake://127.0.0.1:1", "no master"),
            ):
                result = self.refused(command, "--store", store, *more, names=names)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.refused("scopes", names="--store")
        self.refused("scopes", "--store", "memory", "--timeout-s", "-1", names="--timeout-s")

    def test_purge_of_what_is_not_said(self):
        store = ["--store", "ipc:///tmp/newmoon-missing/s"]
        self.refused("purge", *store, names="--scope ID or --namespace NAME")
        self.refused("purge", *store, "--scope", "00" * 16, "--namespace", "x",
                     names="--scope ID or --namespace NAME")
        self.refused("purge", *store, "--scope", "xyz", names="'xyz'")

    def test_engine_that_is_not_there(self):
        endpoint = "ipc:///tmp/newmoon-missing/rank0"
        for command in (["ping"], ["fence"], ["stats"], ["scopes"], ["purge", "--namespace", "x"]):
            self.refused("ctl", "--endpoint", endpoint, "--timeout-s", "0.2", *command,
                         names=endpoint)
        self.refused("ctl", "--endpoint", "tcp://127.0.0.1:1", "ping", names="ipc://PATH")

    def test_purge_bench_of_nothing(self):
        self.refused("bench", "purge", "--store", "memory", names="--store memory")
        self.refused("bench", "purge", "--store", "ipc:///tmp/x", "--keys", "0", names="--keys")

    def test_seeds_backwards(self):
        self.refused("sim", "--seeds", "5..1", names="--seeds")

    def test_bench_out_of_range(self):
        self.refused("bench", "lookup", "--blocks", "0", names="--blocks")

    def test_lists_with_something_that_is_no_number(self):
        for text in ("1,,2", ",1", "1,", "", "1;2", "1,-2", "1,50000001"):
            self.refused("bench", "reset", "--keys", text, names="--keys")
            self.refused("bench", "lookup", "--blocks", text, names="--blocks")

    def test_folders_for_sockets_that_cannot_be_made(self):
        for command in (["seed"], ["bench", "lookup", "--blocks", "1"]):
            self.refused(
                *command, names="/proc/newmoon", environment={"TMPDIR": "/proc/newmoon"}
            )

    def test_unwritable_json(self):
        self.refused(
            "bench", "lookup", "--blocks", "1", "--json", "/proc/newmoon.json",
            names="/proc/newmoon.json",
        )

    def test_json_to_a_folder_is_refused_before_the_work(self):
        with tempfile.TemporaryDirectory() as folder:
            for command in (["bench", "hash"], ["sim", "--seeds", "1..2"]):
                result = self.refused(*command, "--json", folder, names=folder)
                self.assertEqual(result.stdout, "")


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
        # Before the engines start, which take seconds and print their progress.
        for options, names in (
            (["--shots", "16"], "context"),
            (["--kv-blocks", "16"], "--kv-blocks"),
        ):
            result = self.refused(
                "rollout", "--cycles", "1", "--requests", "4", *options, names=names
            )
            self.assertNotIn("cycle 1/1", result.stderr)

    def test_rollout_without_budget(self):
        self.refused("rollout", "--store-bytes", "0", names="--store none")

    def test_unknown_fault(self):
        self.refused("rollout", "--faults", "put:nope", names="nope")

    def refused_problems(self, content, names):
        with tempfile.NamedTemporaryFile() as problems:
            problems.write(content)
            problems.flush()
            self.refused("rollout", "--problems", problems.name, "--shots", "1", names=names)

    def test_problems_of_another_form(self):
        self.refused_problems(b'{"prompt": "a", "canonical_solution": 5}\n', names="line 1")
        self.refused_problems(b'{"prompt": "a\xff"}\n', names="line 1")

    def test_problems_that_are_a_folder(self):
        self.refused("rollout", "--problems", "/tmp", names="cannot read the problems file /tmp")

    def test_paths_that_are_not_utf8(self):
        self.refused("rollout", "--model", b"/missing\xff.gguf", names="no such file")

    def test_stores_that_are_not_there(self):
        self.refused("rollout", "--store", "", names="--store")
        self.refused("rollout", "--store", "tcp://a", names="--store")
        self.refused("rollout", "--store", "ipc:///missing.sock", names="/missing.sock")

    def killed_rollout(self, kill):
        """What is left of a rollout when `kill` took the pids (rollout, engines)."""
        with tempfile.TemporaryDirectory() as folder:
            rollout = subprocess.Popen(
                [NEWMOON, "rollout"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "TMPDIR": folder},
            )
            rollout.stderr.readline()  # it generates
            children = [int(pid) for pid in children_of(rollout.pid)]
            kill(rollout.pid, children)
            _, errors = rollout.communicate(timeout=60)
            left = [pid for pid in children if os.path.exists(f"/proc/{pid}")]
            self.assertEqual((left, os.listdir(folder)), ([], []), errors)
            lines = [line for line in errors.splitlines() if line.startswith("newmoon")]
            self.assertEqual((rollout.returncode, len(lines)), (2, 1), errors)
            return lines[0]

    def test_signals_in_the_middle(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            line = self.killed_rollout(lambda pid, _, number=number: os.kill(pid, number))
            self.assertIn("stopped by a signal", line)

    def test_store_server_killed_in_the_middle(self):
        line = self.killed_rollout(lambda _, pids: os.kill(pids[0], signal.SIGKILL))
        self.assertIn("the store server of this run has ended", line)

    def test_engine_killed_in_the_middle(self):
        line = self.killed_rollout(lambda _, pids: os.kill(pids[-1], signal.SIGKILL))
        self.assertIn("has ended", line)

    def test_missing_problems(self):
        self.refused("rollout", "--problems", "/missing.jsonl", names="/missing.jsonl")

    def test_out_of_range(self):
        self.refused("rollout", "--ranks", "31", names="--ranks")
        for value in ("two", "2.5", "99999999999"):
            self.refused("rollout", "--ranks", value,
                         names=f"--ranks: '{value}' is no whole number, or too large")

    def test_unwritable_temporary_folder(self):
        self.refused("rollout", names="/proc/newmoon", environment={"TMPDIR": "/proc/newmoon"})


if __name__ == "__main__":
    NEWMOON, *rest = sys.argv[1:]
    NEWMOON = os.path.abspath(NEWMOON)
    cases = [BadInput]
    if rest:
        MODEL = rest[0]
        cases = [BadModelInput]  # which holds the others' cases too
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases
    )
    sys.exit(0 if unittest.TextTestRunner().run(suite).wasSuccessful() else 1)
