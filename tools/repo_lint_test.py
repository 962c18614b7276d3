"""Each check of repo_lint.py finds a planted violation, and only that."""

import unittest

import repo_lint

CLEAN = {
    "base/clock.cc": ['#include "base/clock.h"', "Time now() { return steady_clock::now(); }"],
    "base/clock.h": ["#pragma once", "class Clock {", "};"],
    "model/model_runner.h": ["#pragma once", '#include "hash/scope.h"', "#include <llama.h>"],
    "engine/scheduler.cc": ['#include "connector/fence.h"', '#include "engine/scheduler.h"',
                            "// not steady_clock::now()", 'log("rand() /x");'],
    "sim/world.cc": ['#include "engine/scheduler.h"', "class World : public Clock {", "};",
                     "class Scheduler;"],
    "cli/main.cc": ["#include <CLI/CLI.hpp>", '#include "sim/world.h"'],
    "docs/notes.md": ["A plain page.", "TO" "DO(needs a GPU): measure."],
}


def planted(path, *lines):
    """(check, line) of what is found when `path` is planted in the clean tree."""
    found = repo_lint.run({**CLEAN, path: list(lines)})
    return [(v.check, v.line) for v in found if v.path == path]


class RepoLintTest(unittest.TestCase):
    def test_clean_tree(self):
        self.assertEqual(repo_lint.run(CLEAN), [])

    def test_upward_include(self):
        self.assertEqual(planted("hash/key.cc", '#include "store/kv_store.h"'), [("include", 1)])
        self.assertEqual(planted("engine/x.cc", '#include "sim/world.h"'), [("include", 1)])

    def test_model_knows_no_store(self):
        for layer in ("store", "admin", "connector"):
            self.assertEqual(planted("model/x.cc", f'#include "{layer}/x.h"'), [("include", 1)])

    def test_include_relative_to_the_file(self):
        self.assertEqual(planted("base/x.cc", '#include "clock.h"'), [("include", 1)])

    def test_library_outside_its_home(self):
        for header in ("zmq.h", "openssl/evp.h", "xxhash.h", "msgpack.hpp", "llama.h",
                       "ggml-backend.h", "nlohmann/json.hpp", "CLI/CLI.hpp"):
            self.assertEqual(planted("connector/x.cc", f"#include <{header}>"), [("library", 1)])

    def test_banned_calls(self):
        for check, call in (("sleep", "std::this_thread::sleep_for(1ms);"),
                            ("clock", "auto t = std::chrono::steady_clock::now();"),
                            ("clock", "auto t = std::chrono::system_clock::now();"),
                            ("random", "int x = rand();"),
                            ("random", "getrandom(&x, 8, 0);"),
                            ("random", "std::random_device device;"),
                            ("thread", "std::thread worker(run);")):
            self.assertEqual(planted("connector/x.cc", "", call), [(check, 2)])
            self.assertEqual(planted("engine/x.cc", "", call), [(check, 2)])
        self.assertEqual(planted("engine/x_test.cc", "std::this_thread::sleep_for(1ms);"),
                         [("sleep", 1)])

    def test_allowed_only_with_a_reason(self):
        call = "int x = rand();  // lint: allow random"
        self.assertEqual(planted("engine/x.cc", call), [("random", 1)])
        self.assertEqual(planted("engine/x.cc", call + ", a test of rand itself"), [])
        self.assertEqual(planted("engine/x.cc", "int x = rand();  // lint: allow clock, no"),
                         [("random", 1)])

    def test_long_file(self):
        self.assertEqual(planted("base/x.cc", *["int a;"] * 600), [])
        self.assertEqual(planted("base/x.cc", *["int a;"] * 601), [("file-length", 601)])

    def test_long_function(self):
        body = ["  a();"] * 98
        self.assertEqual(planted("base/x.cc", "void f() {", *body, "}"), [])
        self.assertEqual(planted("base/x.cc", "", "void f() {", *body, "", "}"),
                         [("function-length", 2)])
        self.assertEqual(planted("base/x.cc", "void f(int a,", "       int b) {", *body, "}"),
                         [("function-length", 1)])
        self.assertEqual(planted("base/x.cc", "namespace newmoon {", *body, "  a();", "", "}"), [])

    def test_header_without_pragma_once(self):
        self.assertEqual(planted("base/x.h", "class X {};"), [("pragma-once", 1)])

    def test_simulator_fakes_a_production_class(self):
        for line in ("class Clock {", "struct Clock final : Base {", "  class Clock : public A {",
                     "class Clock final {  // a fake"):
            self.assertEqual(planted("sim/x.h", "#pragma once", line), [("sim-name", 2)])
        self.assertEqual(planted("sim/x.h", "#pragma once", "class Clock;"), [])

    def test_leftover(self):
        for path in ("base/x.cc.orig", "dev.d/x.rej", "docs/x.md~"):
            self.assertEqual(planted(path, "a line"), [("leftover", 1)])
        self.assertEqual(planted("docs/original.md", "a line"), [])

    def test_machine_paths(self):
        for path in ("/ro" "ot/x", "/ho" "me/joe/x", "/wo" "rk/x", "../sha" "red/x"):
            self.assertEqual(planted("docs/x.md", "", f"see {path}"), [("machine-path", 2)])
        self.assertEqual(planted("docs/x.md", "$HOME/.cache and hash/wo" "rk/x and /tmp/x"), [])

    def test_registry_hosts(self):
        for text in ("https://py" "pi.example.com/simple", "http://registry." "example.org:80/",
                     "pip install --index" "-url X", "PIP_INDEX" "_URL=X"):
            self.assertEqual(planted("dev.d/x.sh", text), [("registry-host", 1)])

    def test_todo_without_reason(self):
        for mark in ("TO" "DO", "FIX" "ME", "X" "XX"):
            self.assertEqual(planted("base/x.cc", f"// {mark}: later"), [("todo", 1)])
        self.assertEqual(planted("base/x.cc", "// TO" "DO(gcc 13 has it): std::print"), [])


if __name__ == "__main__":
    unittest.main()
