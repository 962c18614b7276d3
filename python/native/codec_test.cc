#include "python/native/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "base/testing/formats_page.h"
#include "connector/testing/jobs.h"

namespace newmoon {
namespace {

using newmoon::testing::test_blocks;
using newmoon::testing::test_scope;

StepMessage full_step() {
  StepMessage step;
  step.metadata.epoch = 7;
  step.metadata.weight_writes = {3, 4};
  step.metadata.loads.push_back({11, "load me", 7, test_scope(1), test_blocks({5, 6})});
  step.metadata.saves.push_back({12, "save me", 6, test_scope(2), test_blocks({9})});
  step.left_scopes = {test_scope(3)};
  step.tainted_scopes = {test_scope(5), test_scope(6)};
  step.open_scope = {test_scope(4), "namespace=run-7"};
  return step;
}

WorkerReport full_report() {
  WorkerReport report;
  report.rank = 1;
  report.loads = {{11, {5, 6}}, {13, {}}};
  report.saves = {{12, SaveOutcome::kStored}, {14, SaveOutcome::kFailed}};
  report.unbound_epoch = 7;
  report.weight_writes = 4;
  report.emptied_scopes = {test_scope(5)};
  return report;
}

template <class Job>
void expect_same(const Job& got, const Job& wanted) {
  EXPECT_EQ(got.request_id, wanted.request_id);
  EXPECT_EQ(got.epoch, wanted.epoch);
  EXPECT_EQ(got.scope, wanted.scope);
  ASSERT_EQ(got.blocks.size(), wanted.blocks.size());
  for (std::size_t i = 0; i < got.blocks.size(); ++i) {
    EXPECT_EQ(got.blocks[i].hash, wanted.blocks[i].hash);
    EXPECT_EQ(got.blocks[i].block, wanted.blocks[i].block);
  }
}

TEST(Codec, AStepComesThrough) {
  const StepMessage wanted = full_step();
  const Result<StepMessage> got = decode_step(encode_step(wanted));
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->metadata.epoch, 7u);
  EXPECT_THAT(got->metadata.weight_writes, ::testing::ElementsAre(3, 4));
  ASSERT_EQ(got->metadata.loads.size(), 1u);
  EXPECT_EQ(got->metadata.loads[0].load_id, 11u);
  expect_same(got->metadata.loads[0], wanted.metadata.loads[0]);
  ASSERT_EQ(got->metadata.saves.size(), 1u);
  EXPECT_EQ(got->metadata.saves[0].job_id, 12u);
  expect_same(got->metadata.saves[0], wanted.metadata.saves[0]);
  EXPECT_EQ(got->left_scopes, wanted.left_scopes);
  EXPECT_EQ(got->tainted_scopes, wanted.tainted_scopes);
  EXPECT_EQ(got->open_scope, wanted.open_scope);
}

TEST(Codec, AStepSaysWhetherAScopeIsOpen) {
  StepMessage step;
  EXPECT_EQ(decode_step(encode_step(step))->open_scope, std::nullopt);
  step.open_scope = StepMessage::OpenScope();
  EXPECT_EQ(decode_step(encode_step(step))->open_scope, step.open_scope);
}

TEST(Codec, AReportComesThrough) {
  const Result<WorkerReport> got = decode_report(encode_report(full_report()));
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->rank, 1u);
  ASSERT_EQ(got->loads.size(), 2u);
  EXPECT_EQ(got->loads[0].load_id, 11u);
  EXPECT_THAT(got->loads[0].failed_blocks, ::testing::ElementsAre(5, 6));
  EXPECT_TRUE(got->loads[1].failed_blocks.empty());
  ASSERT_EQ(got->saves.size(), 2u);
  EXPECT_EQ(got->saves[0].outcome, SaveOutcome::kStored);
  EXPECT_EQ(got->saves[1].outcome, SaveOutcome::kFailed);
  EXPECT_EQ(got->unbound_epoch, 7u);
  EXPECT_EQ(got->weight_writes, 4u);
  EXPECT_EQ(got->emptied_scopes, full_report().emptied_scopes);
}

TEST(Codec, TheExamplesOfThePageAreOurs) {
  StepMessage step;
  step.metadata.epoch = 7;
  step.metadata.weight_writes = {3};
  step.metadata.loads.push_back({11, "a", 7, test_scope(1), {{BlockHash(Bytes(16, 0xab)), 5}}});
  step.left_scopes = {test_scope(2)};
  step.open_scope = {test_scope(3), "ns"};
  EXPECT_EQ(to_hex(encode_step(step)), newmoon::testing::hex_example("vllm-step"));

  WorkerReport report;
  report.rank = 1;
  report.weight_writes = 3;
  report.loads = {{11, {5}}};
  report.saves = {{12, SaveOutcome::kDropped}};
  EXPECT_EQ(to_hex(encode_report(report)), newmoon::testing::hex_example("vllm-report"));
}

TEST(Codec, AReportThatBindsNoEpochSaysSo) {
  const Result<WorkerReport> got = decode_report(encode_report(WorkerReport{}));
  ASSERT_TRUE(got);
  EXPECT_FALSE(got->unbound_epoch);
}

// Every prefix, and one byte too many.
TEST(Codec, CutOrLongerBytesAreRefused) {
  const Bytes step = encode_step(full_step());
  const Bytes report = encode_report(full_report());
  for (std::size_t size = 0; size < step.size(); ++size) {
    EXPECT_FALSE(decode_step(ByteView(step).first(size))) << size;
  }
  for (std::size_t size = 0; size < report.size(); ++size) {
    EXPECT_FALSE(decode_report(ByteView(report).first(size))) << size;
  }
  for (Bytes longer : {step, report}) {
    longer.push_back(0);
    EXPECT_FALSE(decode_step(longer));
    EXPECT_FALSE(decode_report(longer));
  }
}

TEST(Codec, AStepIsNoReport) {
  EXPECT_FALSE(decode_report(encode_step(full_step())));
  EXPECT_FALSE(decode_step(encode_report(full_report())));
}

// A count that the bytes cannot hold is refused before anything is allocated for it.
TEST(Codec, HugeCountsAreRefused) {
  Bytes step = encode_step(full_step());
  std::fill_n(step.begin() + 1 + 8, 4, 0xff);  // of weight_writes
  const Result<StepMessage> got = decode_step(step);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::kBadRequest);
}

TEST(Codec, MutatedBytesNeverDoHarm) {
  SeededRandom random(1);
  const Bytes step = encode_step(full_step());
  const Bytes report = encode_report(full_report());
  std::size_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    Bytes mutated = i % 2 == 0 ? step : report;
    mutated[random.below(mutated.size())] = static_cast<std::uint8_t>(random.next());
    accepted += decode_step(mutated).has_value() + decode_report(mutated).has_value();
  }
  EXPECT_GT(accepted, 1000u);  // a changed hash or id is still a message
}

}  // namespace
}  // namespace newmoon
