// The admin commands that look into the store, and rule PURGE.
#include <gmock/gmock.h>

#include "admin/store_codec.h"
#include "connector/store_worker.h"
#include "connector/testing/worker_fixture.h"

namespace newmoon::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class StoreWorkerPurgeTest : public WorkerFixture {
 protected:
  void list(const ScopeId& scope, std::vector<std::string> holders = {}) {
    store_.usages.push_back({scope, "", 3, 300, std::move(holders)});
  }
  Result<PurgeAck> purge(const ScopeId& scope) {
    std::optional<Result<PurgeAck>> answer;
    values_at_answer_ = ~std::size_t{0};
    worker_->purge({{.scope = scope, .name_space = {}}}, [&](const Result<PurgeAck>& ack) {
      answer = ack;
      values_at_answer_ = store_.values.size();
    });
    return *answer;
  }

  std::size_t values_at_answer_ = 0;
};

TEST_F(StoreWorkerPurgeTest, AnswersFirstAndPurgesBehind) {
  preload({1, 2, 3});
  worker_->fence(2);  // this engine has left the scope
  list(test_scope(1));
  const Result<PurgeAck> ack = purge(test_scope(1));
  ASSERT_TRUE(ack) << ack.error().message;
  EXPECT_EQ(ack->scopes, 1u);
  EXPECT_EQ(ack->blocks, 3u);
  EXPECT_EQ(ack->bytes, 300u);
  EXPECT_EQ(values_at_answer_, 3u);
  EXPECT_THAT(store_.values, SizeIs(0));
  EXPECT_EQ(worker_->rank_stats().purges.accepted, 1u);
  EXPECT_EQ(worker_->rank_stats().purges.done, 1u);
}

TEST_F(StoreWorkerPurgeTest, RefusesWhatThisEngineUsesWhateverTheStoreKnows) {
  preload({1, 2, 3});
  list(test_scope(1));
  const Result<PurgeAck> refused = purge(test_scope(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_THAT(store_.values, SizeIs(3));
  EXPECT_EQ(worker_->rank_stats().purges.accepted, 0u);
}

TEST_F(StoreWorkerPurgeTest, RefusesWhatAnotherEngineHolds) {
  preload({1, 2, 3});
  worker_->fence(2);
  list(test_scope(1), {"engine-2@host:7"});
  const Result<PurgeAck> refused = purge(test_scope(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_THAT(refused.error().message, HasSubstr("engine-2@host:7"));
  EXPECT_THAT(store_.values, SizeIs(3));
}

TEST_F(StoreWorkerPurgeTest, APurgeThatFailsIsCounted) {
  list(test_scope(5));
  store_.purge_error = Error{Code::kUnavailable, "gone"};
  EXPECT_TRUE(purge(test_scope(5)));
  EXPECT_EQ(worker_->rank_stats().purges.done, 0u);
  EXPECT_EQ(worker_->rank_stats().purges.failed, 1u);
  EXPECT_EQ(purge(test_scope(6)).error().code, Code::kMiss);
}

TEST_F(StoreWorkerPurgeTest, StatsTellOfQueuesFencesAndAStoreThatIsGone) {
  worker_->wait_for_save(step_with(save_job(7, 4, {1, 2})));
  worker_->start_load_kv(step_with(load_job(8, 4, {3})));
  worker_->note_weight_write(0);  // moves the floor past epoch 4; drops what is queued
  worker_->wait_for_save(step_with(save_job(9, 6, {1, 2})));
  const RankStats stats = worker_->rank_stats();
  EXPECT_EQ(stats.epoch, 6u);
  EXPECT_EQ(stats.floor, 6u);
  EXPECT_EQ(stats.weight_writes, 1u);
  EXPECT_EQ(stats.queued_saves, 1u);
  EXPECT_EQ(stats.queued_loads, 0u);
  EXPECT_EQ(stats.transfers.refused_jobs, 2u);
  EXPECT_EQ(stats.store_error, "");
  store_.stats_error = Error{Code::kUnavailable, "nobody serves"};
  EXPECT_EQ(worker_->rank_stats().store_error, "unavailable: nobody serves");
  EXPECT_EQ(worker_->rank_stats().epoch, 6u);
}

TEST_F(StoreWorkerPurgeTest, ScopesComeInPages) {
  for (std::uint32_t i = 0; i < kPageScopesMax + 3; ++i) {
    ScopeId scope;
    store_be(scope.bytes.data(), i);
    list(scope);
  }
  const Result<ScopesPage> first = worker_->list_scopes({});
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->more);
  ASSERT_THAT(first->scopes, SizeIs(kPageScopesMax));
  const Result<ScopesPage> last = worker_->list_scopes({.after = first->scopes.back().scope});
  EXPECT_FALSE(last->more);
  ASSERT_THAT(last->scopes, SizeIs(3));
  EXPECT_EQ(last->scopes.front().scope, store_.usages[kPageScopesMax].scope);
}

}  // namespace
}  // namespace newmoon::testing
