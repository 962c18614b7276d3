#include "cli/scope_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hash/scope_text.h"
#include "store/mooncake/config.h"

namespace newmoon {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

ScopeUsage usage_of(const Scope& scope) {
  ScopeUsage usage;
  usage.scope = scope.id();
  usage.description = describe(scope);
  usage.blocks = 14;
  usage.bytes = 5162752;
  return usage;
}

TEST(ScopesTextTest, ShowsTheParts) {
  ScopeUsage usage = usage_of({.name_space = "Läufe 100%",
                               .model = "Qwen/Qwen3-0.6B",
                               .layout = "block of 16 tokens, f16",
                               .weights = LabelIdentity{"step 42"}});
  usage.holders = {"engine0@host:7:ab", "engine1@host:8:cd"};
  const std::string text = scopes_text({&usage, 1});
  EXPECT_THAT(text, HasSubstr(usage.scope.hex() + "         14         5162752      2\n"));
  EXPECT_THAT(text, HasSubstr("\n    namespace    Läufe 100%\n"));
  EXPECT_THAT(text, HasSubstr("\n    model        Qwen/Qwen3-0.6B\n"));
  EXPECT_THAT(text, HasSubstr("\n    weights      label:step 42\n"));
  EXPECT_THAT(text, HasSubstr("\n    layout       block of 16 tokens, f16\n"));
  EXPECT_THAT(text, EndsWith("\n    in use by    engine0@host:7:ab +1\n"));
}

TEST(ScopesTextTest, WhatOthersWroteMovesNoCursor) {
  ScopeUsage usage = usage_of({.name_space = "a\x1b[2J\nb\xc2\x9bz",
                               .model = {},
                               .layout = {},
                               .weights = LabelIdentity{"x"}});
  EXPECT_THAT(scopes_text({&usage, 1}), HasSubstr("namespace    a?[2J?b??z\n"));
  usage.description = "no \r description";
  EXPECT_THAT(scopes_text({&usage, 1}), HasSubstr("description  no ? description\n"));
}

TEST(ScopesTextTest, NoneIsSaidSo) { EXPECT_EQ(scopes_text({}), "no scopes\n"); }

TEST(LendingNothingTest, WhateverTheUrlOfAnEngineSays) {
  for (const std::string options : {"", "?metrics_port=9003", "?global_segment_size=64MB",
                                    "?global_segment_size=64MB&protocol=tcp"}) {
    const auto config = load_mooncake_config(lending_nothing("mooncake://127.0.0.1:1" + options));
    ASSERT_TRUE(config) << options << ": " << config.error().message;
    EXPECT_EQ(config->global_segment_bytes, 0u) << options;
  }
  EXPECT_EQ(lending_nothing("ipc:///tmp/store.sock"), "ipc:///tmp/store.sock");
}

}  // namespace
}  // namespace newmoon
