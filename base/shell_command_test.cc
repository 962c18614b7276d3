#include "base/shell_command.h"

#include <gtest/gtest.h>

namespace newmoon {
namespace {

TEST(ShellCommand, QuotesWhatAShellWouldTakeForSomethingElse) {
  EXPECT_EQ(shell_command({"newmoon", "ctl", "--endpoint", "ipc:///tmp/a-b_c.sock", "ping"}),
            "newmoon ctl --endpoint ipc:///tmp/a-b_c.sock ping");
  EXPECT_EQ(shell_command({"scopes", "--store", "mooncake://h:1?a=1&b=2"}),
            "scopes --store 'mooncake://h:1?a=1&b=2'");
  EXPECT_EQ(shell_command({"a b", "it's", "", "$x", "l\xc3\xa4ufe"}),
            "'a b' 'it'\\''s' '' '$x' 'l\xc3\xa4ufe'");
}

}  // namespace
}  // namespace newmoon
