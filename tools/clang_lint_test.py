"""Each of clang's checks in ./dev lint finds a planted violation, in a scratch repository."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

CMAKELISTS = """
cmake_minimum_required(VERSION 3.25)
project(planted LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 23)
option(NEWMOON_TESTS "" OFF)
include(cmake/layers.cmake)
add_subdirectory(base)
"""

GOOD_HEADER = "#pragma once\n\n#include <string>\n\nstd::string name();\n"
GOOD_SOURCE = '#include "base/planted.h"\n\nstd::string name() { return "x"; }\n'


class ClangLintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in (".clang-format", ".clang-tidy", "CMakePresets.json", "cmake/layers.cmake",
                     "cmake/llama", "tools", "base/thread_annotations.h"):
            source, target = ROOT / name, self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        self.write("CMakeLists.txt", CMAKELISTS)
        self.write("base/CMakeLists.txt", "nm_layer(base)\n")
        self.write("base/planted.h", GOOD_HEADER)
        self.write("base/planted.cc", GOOD_SOURCE)
        self.run_here("git", "init", "-q")

    def write(self, name, text):
        (self.root / name).write_text(text)

    def run_here(self, *command):
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def lint(self, check):
        return self.run_here(sys.executable, "tools/clang_lint.py", check)

    def tidy(self):
        self.run_here("cmake", "--preset", "clang")
        return self.lint("tidy")

    def expect(self, result, code, text):
        self.assertEqual(result[0], code, result[1])
        self.assertIn(text, result[1])

    def test_format(self):
        self.expect(self.lint("format"), 0, "0 failed")
        self.write("base/planted.cc", GOOD_SOURCE.replace("return", " return"))
        self.expect(self.lint("format"), 1, "base/planted.cc: format")

    def test_header_that_needs_another_before_it(self):
        self.write("base/alone.h", GOOD_HEADER)
        self.expect(self.lint("headers"), 0, "0 failed")
        self.write("base/alone.h", GOOD_HEADER.replace("#include <string>\n", ""))
        self.expect(self.lint("headers"), 1, "base/alone.h: headers")

    def test_header_that_its_source_does_not_include_first(self):
        header = GOOD_HEADER.replace("#include <string>\n", "")
        self.write("base/planted.h", header)
        self.expect(self.tidy(), 1, "clang-diagnostic-error")
        self.write("base/planted.cc", "#include <string>\n" + GOOD_SOURCE)
        self.expect(self.lint("headers"), 1, "base/planted.h: headers")

    def test_change_in_an_included_header_is_seen(self):
        self.write("base/user.h", '#pragma once\n\n#include "base/planted.h"\n')
        self.expect(self.lint("headers"), 0, "0 failed")
        self.write("base/planted.h", "#pragma once\n\nint name(;\n")
        self.expect(self.lint("headers"), 1, "base/user.h: headers")

    def test_thread_safety(self):
        self.expect(self.tidy(), 0, "1 files, 0 failed")
        self.write("base/planted.cc", GOOD_SOURCE + '#include "base/thread_annotations.h"\n'
                   "newmoon::Mutex mutex;\nint guarded NM_GUARDED_BY(mutex);\n"
                   "int unlocked() { return guarded; }\n")
        self.expect(self.tidy(), 1, "requires holding mutex 'mutex'")

    def test_tidy(self):
        self.expect(self.tidy(), 0, "1 files, 0 failed")
        self.write("base/planted.cc", GOOD_SOURCE + "#include <utility>\n"
                   "std::string moved(std::string a) {\n"
                   "  std::string b = std::move(a);\n  return a + b;\n}\n")
        self.expect(self.tidy(), 1, "bugprone-use-after-move")


if __name__ == "__main__":
    unittest.main()
