#include "hash/scope_text.h"

#include <gtest/gtest.h>

namespace newmoon {
namespace {

Scope scope_with(WeightsIdentity weights) {
  return {"run-7", "Qwen/Qwen3-0.6B", "block=16;dtype=bf16;tp=2", std::move(weights)};
}

TEST(ScopeText, IsOneReadableLine) {
  EXPECT_EQ(describe(scope_with(LabelIdentity{"step-42"})),
            "namespace=run-7 model=Qwen/Qwen3-0.6B layout=block=16;dtype=bf16;tp=2 "
            "weights=label:step-42");
}

TEST(ScopeText, IsReadBackExactly) {
  DigestIdentity digest;
  for (std::size_t i = 0; i < digest.sha256.size(); ++i) digest.sha256[i] = i * 9;
  std::vector<Scope> scopes = {scope_with(digest), scope_with(LabelIdentity{"a b%c"}),
                               scope_with(UniqueIdentity{{{1, 2, 3}}, ~Epoch{0}})};
  // Names that try to look like something else.
  scopes.push_back({"x model=y", "", " weights=label:z\n", LabelIdentity{""}});
  scopes.push_back({"", "m\x7f\t", "größe", LabelIdentity{"digest:00"}});
  for (const Scope& scope : scopes) {
    const Result<Scope> read = parse_scope(describe(scope));
    ASSERT_TRUE(read) << describe(scope);
    EXPECT_EQ(*read, scope);
    EXPECT_EQ(read->id(), scope.id());
  }
}

TEST(ScopeText, OtherTextIsRefused) {
  const std::string good = describe(scope_with(UniqueIdentity{{{1, 2, 3}}, 7}));
  ASSERT_TRUE(parse_scope(good));
  // Cut anywhere it is refused, but within the number at its end.
  for (std::size_t size = 0; size + 1 < good.size(); ++size) {
    EXPECT_FALSE(parse_scope(good.substr(0, size))) << size;
  }
  for (const std::string text :
       {"weights of step 42", "namespace=a model=b layout=c weights=label:d e",
        "namespace=a%2 model=b layout=c weights=label:d",
        "namespace=a%61 model=b layout=c weights=label:d",
        "namespace=a model=b layout=c weights=digest:00", "namespace=a model=b layout=c weights=x:",
        "namespace=a model=b layout=c weights=unique:00000000000000000000000000000000:-1"}) {
    EXPECT_FALSE(parse_scope(text)) << text;
  }
}

}  // namespace
}  // namespace newmoon
