// MooncakeStore over a client that does as told; over the real one in
// store/conformance_test.cc and store/mooncake/mooncake_real_test.cc.
#include "store/mooncake/mooncake_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <cstring>
#include <memory>

#include "store/mooncake/record_key.h"
#include "store/mooncake/testing/mooncake_store_fixture.h"
#include "store/mooncake/value_form.h"
#include "store/testing/blocks.h"
#include "store/testing/manual_time.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST_F(MooncakeStoreTest, AValueIsHeaderAndPayloadInOnePiece) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
  MutexLock lock(fake_.mutex);
  ASSERT_EQ(fake_.values.size(), 1u);
  const auto& [key, value] = *fake_.values.begin();
  EXPECT_EQ(key, key_of(1, 1).to_string());
  ASSERT_EQ(value.size(), sizeof(ValueHeader) + 100);
  EXPECT_EQ(value.substr(0, 4), "VKNM");
  const TestBlock block(100, key_of(1, 1).block.event_int());
  EXPECT_EQ(to_bytes(value.substr(sizeof(ValueHeader))), block.bytes());
}

TEST_F(MooncakeStoreTest, ALargePayloadBeginsOnAPageBehindZeros) {
  const TestBlock staged(256 << 10, 7);
  const auto known = std::make_shared<TestBlock>(256 << 10, 8);
  store().register_memory(known, known->bytes());
  std::vector<PutItem> items{put_item(key_of(1, 1), staged), put_item(key_of(1, 2), *known)};
  for (const Status& status : store().put(items)) ASSERT_TRUE(status) << status.error().message;
  const std::pair<Key, Bytes> wanted[] = {{key_of(1, 1), staged.bytes()},
                                          {key_of(1, 2), known->bytes()}};
  for (const auto& [key, bytes] : wanted) {
    MutexLock lock(fake_.mutex);
    const std::string& value = fake_.values.at(key.to_string());
    ASSERT_EQ(value.size(), 4096u + (256 << 10));
    EXPECT_EQ(value.substr(0, 4), "VKNM");
    EXPECT_EQ(value.substr(128, 4096 - 128), std::string(4096 - 128, '\0'));
    EXPECT_EQ(to_bytes(value.substr(4096)), bytes);
  }
  TestBlock into(256 << 10, 9);
  const GetItem get{key_of(1, 2), into.target()};
  ASSERT_TRUE(store().get({&get, 1})[0]);
  EXPECT_EQ(into.bytes(), known->bytes());
}

// Of one that is longer than was asked for no byte is read, so its length is all there is to see.
TEST_F(MooncakeStoreTest, AValueThatIsNotWholeIsCorruptAndNoMatterOfLength) {
  const std::string key = key_of(1, 1).to_string();
  for (const std::size_t bytes : {0, 100, 150}) {
    ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
    {
      MutexLock lock(fake_.mutex);
      fake_.values.at(key).resize(bytes);
    }
    EXPECT_EQ(code_of(check_one(store(), key_of(1, 1), 100)), Code::kCorrupt) << bytes;
    ASSERT_TRUE(store().remove(key_of(1, 1)));
  }
}

TEST_F(MooncakeStoreTest, AValueThatGoesWhileItsLengthIsAskedForIsAMiss) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
  fake_.set_code("get", -600);
  {
    MutexLock lock(fake_.mutex);
    fake_.values.clear();
  }
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1), 99)), Code::kMiss);
}

TEST_F(MooncakeStoreTest, AGetThatTheMasterRefusesIsNoMatterOfLength) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
  for (const int refusal : {-1700, -1702}) {
    fake_.set_code("get", refusal);
    EXPECT_EQ(code_of(check_one(store(), key_of(1, 1), 100)), Code::kInternal) << refusal;
  }
}

TEST_F(MooncakeStoreTest, ABatchLargerThanTheStagingMemoryGoesThrough) {
  const TestBlock block(300'000, 5);
  std::vector<PutItem> puts;
  std::vector<GetItem> gets;
  std::vector<TestBlock> targets;
  for (std::size_t i = 0; i < 50; ++i) targets.emplace_back(300'000, 9);
  for (std::size_t i = 0; i < 50; ++i) {
    puts.push_back(put_item(key_of(1, i), block));
    gets.push_back({key_of(1, i), targets[i].target()});
  }
  for (const Status& status : store().put(puts)) ASSERT_TRUE(status) << status.error().message;
  for (const auto& value : store().get(gets)) ASSERT_TRUE(value) << value.error().message;
  for (const TestBlock& target : targets) ASSERT_EQ(target.bytes(), block.bytes());
}

TEST_F(MooncakeStoreTest, AValueLargerThanTheStagingMemoryIsRefused) {
  EXPECT_EQ(code_of(put_one(store(), key_of(1, 1), 5 << 20)), Code::kBadRequest);
  EXPECT_EQ(fake_.count(), 0u);
}

// --- codes -------------------------------------------------------------------------

TEST_F(MooncakeStoreTest, NegativeCodesAreErrors) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  const std::pair<std::int64_t, Code> cases[] = {
      {-200, Code::kBusy},        {-704, Code::kMiss},     {-707, Code::kMiss},
      {-900, Code::kUnavailable}, {-901, Code::kDeadline}, {-12345, Code::kInternal}};
  for (const auto& [code, meaning] : cases) {
    for (const char* call : {"put", "get", "exist", "remove", "health"}) fake_.set_code(call, code);
    EXPECT_EQ(code_of(put_one(store(), key_of(1, 2))), meaning) << code;
    EXPECT_EQ(code_of(check_one(store(), key_of(1, 1))), meaning) << code;
    const Shard shard;
    const BlockHash block = block_of(1);
    EXPECT_EQ(code_of(store().hit_prefix(scope_of(1), {&shard, 1}, {&block, 1})), meaning) << code;
    EXPECT_FALSE(store().ping()) << code;
  }
}

TEST_F(MooncakeStoreTest, ALongLookupAsksLittleFirstUnlessTheLastOneHit) {
  for (std::uint64_t i = 0; i < 6000; ++i) ASSERT_TRUE(put_one(store(), key_of(1, i), 8));
  const Shard shard;
  const auto calls_of = [&](std::uint64_t first, std::size_t count, std::size_t hits) {
    {
      MutexLock lock(fake_.mutex);
      fake_.looked_at.clear();
    }
    EXPECT_EQ(store().hit_prefix(scope_of(1), {&shard, 1}, blocks_of(first, count)), hits);
    MutexLock lock(fake_.mutex);
    std::vector<std::size_t> sizes;
    for (const auto& keys : fake_.looked_at) sizes.push_back(keys.size());
    std::ranges::sort(sizes);
    return sizes;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(calls_of(0, 1000, 1000), ElementsAre(1000));
  EXPECT_THAT(calls_of(0, 6000, 6000), ElementsAre(64, 2968, 2968));
  EXPECT_THAT(calls_of(0, 6000, 6000), ElementsAre(3000, 3000));
  EXPECT_THAT(calls_of(7000, 2000, 0), ElementsAre(1000, 1000));
  EXPECT_THAT(calls_of(7000, 6000, 0), ElementsAre(64));
  EXPECT_THAT(calls_of(7000, 1000, 0), ElementsAre(1000));
  EXPECT_THAT(calls_of(5900, 2000, 100), ElementsAre(64, 968, 968));
  EXPECT_THAT(calls_of(5900, 2000, 100), ElementsAre(1000, 1000));
}

TEST_F(MooncakeStoreTest, ALookupOfManyStretchesCountsThroughAllOfThem) {
  const Shard shards[] = {Shard{.tp = 0}, Shard{.tp = 1}, Shard{.tp = 2}};
  constexpr std::size_t kBlocks = 7000;  // 21,000 keys
  const auto text = [](std::uint64_t block, std::uint16_t rank) {
    return key_of(1, block, rank).to_string();
  };
  store();
  {
    MutexLock lock(fake_.mutex);
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      for (const Shard& shard : shards) fake_.values[text(block, shard.tp)] = "value";
    }
  }
  for (const std::size_t lost : {kBlocks, std::size_t{6999}, std::size_t{5500}, std::size_t{2731},
                                 std::size_t{2730}, std::size_t{2729}, std::size_t{21}}) {
    {
      MutexLock lock(fake_.mutex);
      fake_.values.erase(text(lost, lost % 3));
    }
    for (const char* const last : {"a hit", "another"}) {  // with a small stretch first or without
      EXPECT_EQ(store().hit_prefix(scope_of(1), shards, blocks_of(0, kBlocks)), lost) << last;
    }
    const Shard absent{.tp = 9};
    EXPECT_EQ(store().hit_prefix(scope_of(1), {&absent, 1}, blocks_of(0, kBlocks)), 0u);
  }
}

TEST_F(MooncakeStoreTest, AnExceptionOfTheWheelIsAnErrorWithItsText) {
  store();
  {
    MutexLock lock(fake_.mutex);
    fake_.raises = "mooncake put: TypeError: no";
  }
  const Status status = put_one(store(), key_of(1, 1));
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("TypeError: no"));
}

TEST_F(MooncakeStoreTest, SetupThatFailsSaysSo) {
  fake_.set_code("setup", -600);
  const auto opened =
      MooncakeStore::open_with([this] { return make_client(); }, config_, *clock_, options_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kBadRequest);
  EXPECT_THAT(opened.error().message, HasSubstr("setup"));
}

TEST_F(MooncakeStoreTest, SetupThatFailsNamesAProtocolThatNotEveryBuildHas) {
  fake_.set_code("setup", -1);
  config_.protocol = "bogus";
  const auto opened =
      MooncakeStore::open_with([this] { return make_client(); }, config_, *clock_, options_);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, HasSubstr("protocol 'bogus'"));
}

TEST_F(MooncakeStoreTest, WhatTheSetupThrewIsSaid) {
  const auto make_client = []() -> Result<std::unique_ptr<MooncakeClient>> {
    throw std::runtime_error("no such device");
  };
  const auto opened = MooncakeStore::open_with(make_client, config_, *clock_, options_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kInternal);
  EXPECT_THAT(opened.error().message, HasSubstr("no such device"));
}

TEST_F(MooncakeStoreTest, ASetupThatHangsHoldsUpNoOtherStoreForLongerThanItsTime) {
  fake_.hold();
  options_.start_timeout = options_.stop_timeout = milliseconds(50);
  const auto open = [this] {
    return MooncakeStore::open_with([this] { return make_client(); }, config_, *clock_, options_);
  };
  const auto hanging = open();
  ASSERT_FALSE(hanging);
  EXPECT_THAT(hanging.error().message, HasSubstr("no answer in time"));
  const auto other = open();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kDeadline);
  EXPECT_THAT(other.error().message, HasSubstr("another store of this process is joining"));
  fake_.let_go();
  options_.start_timeout = std::chrono::seconds(60);
  EXPECT_TRUE(open());
}

// The wheel's own threads are named after the one that sets it up.
TEST_F(MooncakeStoreTest, TheWheelIsNotSetUpUnderThePurgersName) {
  std::array<char, 16> name{};
  const auto make_client = [&]() -> Result<std::unique_ptr<MooncakeClient>> {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    return fail(Code::kUnavailable, "asked for its name only");
  };
  EXPECT_FALSE(MooncakeStore::open_with(make_client, config_, *clock_, options_));
  EXPECT_STREQ(name.data(), "moon-store");
}

// Mooncake answers 0 for a key that somebody else is writing, or died over.
TEST_F(MooncakeStoreTest, APutOfWhatCannotBeReadIsNoSuccess) {
  {
    MutexLock lock(fake_.mutex);
    fake_.being_written.insert(key_of(1, 2).to_string());
  }
  const TestBlock block(100, 1);
  std::vector<PutItem> puts;
  for (std::uint64_t i = 1; i <= 3; ++i) puts.push_back(put_item(key_of(1, i), block));
  const std::vector<Status> statuses = store().put(puts);
  EXPECT_TRUE(statuses[0]);
  EXPECT_EQ(code_of(statuses[1]), Code::kBusy);
  EXPECT_TRUE(statuses[2]);
}

TEST_F(MooncakeStoreTest, AnotherWriterOfTheSameKeyIsWaitedForShortly) {
  clock_ = &manual_clock_;
  {
    MutexLock lock(fake_.mutex);
    fake_.being_written.insert(key_of(1, 2).to_string());
  }
  manual_clock_.on_sleep = [&] {  // between two looks
    if (manual_clock_.now() < milliseconds(100)) return;
    MutexLock lock(fake_.mutex);
    fake_.values[key_of(1, 2).to_string()] = "theirs";
  };
  EXPECT_TRUE(put_one(store(), key_of(1, 2)));
}

TEST_F(MooncakeStoreTest, ASoleWriterSparesTheLookUntilAPutHasFailed) {
  const TestBlock block(100, 1);
  PutItem item = put_item(key_of(1, 1), block);
  item.sole_writer = true;
  EXPECT_TRUE(store().put({&item, 1}).at(0));
  {
    MutexLock lock(fake_.mutex);
    EXPECT_EQ(fake_.looked_at.size(), 0u);
  }
  fake_.set_code("put", -800);
  EXPECT_FALSE(store().put({&item, 1}).at(0));
  fake_.set_code("put", 0);
  // Half written by the put that failed.
  item = put_item(key_of(1, 2), block);
  item.sole_writer = true;
  {
    MutexLock lock(fake_.mutex);
    fake_.being_written.insert(item.key.to_string());
  }
  EXPECT_EQ(code_of(store().put({&item, 1}).at(0)), Code::kBusy);
}

// --- deadlines ---------------------------------------------------------------------

TEST_F(MooncakeStoreTest, ALateReadWritesIntoNobodysMemory) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  const TestBlock into = get_while_the_wheel_hangs();
  fake_.let_go();
  store_.reset();  // the call has ended
  EXPECT_EQ(into.bytes(), TestBlock(100, 12345).bytes());
}

TEST_F(MooncakeStoreTest, ALatePutReadsTheBytesOfTheCall) {
  impatient();
  store();
  fake_.hold();
  {
    const TestBlock block(100, 7);
    EXPECT_EQ(code_of(put_one(*store_, key_of(1, 1), block)), Code::kDeadline);
  }  // gone, as a caller's memory may be
  fake_.await_waiting(1);
  fake_.let_go();
  store_.reset();
  const TestBlock block(100, 7);
  MutexLock lock(fake_.mutex);
  const std::string& value = fake_.values.begin()->second;
  EXPECT_EQ(to_bytes(value.substr(sizeof(ValueHeader))), block.bytes());
}

TEST_F(MooncakeStoreTest, EveryCallEndsWhileTheWheelHangs) {
  impatient();
  store();
  fake_.hold();
  const Shard shard;
  const std::vector<BlockHash> blocks = blocks_of(0, 10);
  for (int i = 0; i < 6; ++i) {  // more than there are workers
    EXPECT_EQ(code_of(store().hit_prefix(scope_of(1), {&shard, 1}, blocks)), Code::kDeadline);
  }
  EXPECT_EQ(code_of(put_one(store(), key_of(1, 1))), Code::kDeadline);
  EXPECT_EQ(code_of(store().ping()), Code::kDeadline);
  EXPECT_TRUE(store().purge_scope(scope_of(1), true));
  fake_.let_go();
  store_.reset();
  EXPECT_EQ(fake_.count(), 0u);  // what nobody waited for was never begun
}

TEST_F(MooncakeStoreTest, OfALookupThatIsLateNoOtherCallBegins) {
  options_.workers = 1;
  impatient();
  for (std::uint64_t i = 0; i < 2000; ++i) ASSERT_TRUE(put_one(store(), key_of(1, i), 8));
  const Shard shard;
  const auto look = [&] {
    return store().hit_prefix(scope_of(1), {&shard, 1}, blocks_of(0, 2000));
  };
  const auto begun = [&] {
    MutexLock lock(fake_.mutex);
    return fake_.looked_at.size();
  };
  EXPECT_EQ(look(), 2000u);  // so that the next one begins with two calls
  const std::size_t before = begun();
  fake_.hold();
  EXPECT_EQ(code_of(look()), Code::kDeadline);
  fake_.await_waiting(1);
  fake_.let_go();
  store_.reset();
  EXPECT_EQ(begun(), before + 1);
}

TEST_F(MooncakeStoreTest, TheEndWaitsForWhatRunsButNotForEver) {
  impatient();
  options_.stop_timeout = milliseconds(50);
  store();
  fake_.hold();
  (void)store().ping();
  store_.reset();
  fake_.await_waiting(1);  // still there: left to itself
  fake_.let_go();
  MutexLock lock(fake_.mutex);
  EXPECT_FALSE(fake_.closed);
}

TEST_F(MooncakeStoreTest, AnOrderlyEndClosesTheClient) {
  store();
  store_.reset();
  MutexLock lock(fake_.mutex);
  EXPECT_TRUE(fake_.closed);
}

// --- descriptions ------------------------------------------------------------------

TEST_F(MooncakeStoreTest, TheLastOfSeveralDescriptionsStays) {
  const std::string key = description_key(scope_of(1));
  store();
  {
    MutexLock lock(fake_.mutex);
    fake_.held_text = "step 41";
  }
  store().describe_scope(scope_of(1), "step 41");
  fake_.await_waiting(1);
  store().describe_scope(scope_of(1), "step 42");
  {
    MutexLock lock(fake_.mutex);
    while (fake_.values[key] != "step 42") fake_.changed.wait(fake_.mutex);
    fake_.held_text = "";
    fake_.changed.notify_all();
  }
  store_.reset();  // the calls have ended
  MutexLock lock(fake_.mutex);
  EXPECT_EQ(fake_.values[key], "step 42");
}

// --- purges ------------------------------------------------------------------------

TEST_F(MooncakeStoreTest, APurgeHidesAtOnceAndWaitsForNothing) {
  options_.timeout = std::chrono::seconds(2);  // which a put into what is being purged waits
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  ASSERT_TRUE(put_one(store(), key_of(2, 1)));
  fake_.set_code("regex", -900);  // the master is not to be reached
  ASSERT_TRUE(store().purge_scope(scope_of(1), false));
  EXPECT_FALSE(is_there(store(), key_of(1, 1)));
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1))), Code::kMiss);
  EXPECT_EQ(code_of(put_one(store(), key_of(1, 1))), Code::kBusy);
  EXPECT_TRUE(check_one(store(), key_of(2, 1)));
  EXPECT_EQ(fake_.count(), 2u);
}

TEST_F(MooncakeStoreTest, AFailedPassIsTriedAgainUntilTheScopeIsEmpty) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  ASSERT_TRUE(put_one(store(), key_of(2, 1)));
  fake_.set_code("regex", -900);
  ASSERT_TRUE(store().purge_scope(scope_of(1), false));
  {
    MutexLock lock(fake_.mutex);
    while (fake_.passes < 1) fake_.changed.wait(fake_.mutex);
  }
  fake_.set_code("regex", 0);
  ASSERT_TRUE(put_one(store(), key_of(1, 2)));  // once it is empty
  EXPECT_TRUE(check_one(store(), key_of(1, 2)));
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1))), Code::kMiss);
  EXPECT_TRUE(check_one(store(), key_of(2, 1)));
}

TEST_F(MooncakeStoreTest, WhatWasBeingWrittenDuringAPurgeIsPurgedLater) {
  options_.recheck_delays = {milliseconds(20), std::chrono::seconds(5)};
  ASSERT_TRUE(store().purge_scope(scope_of(1), true));
  MutexLock lock(fake_.mutex);
  while (fake_.passes < 1) fake_.changed.wait(fake_.mutex);
  fake_.values[key_of(1, 1).to_string()] = "complete at last";
  while (!fake_.values.empty()) fake_.changed.wait(fake_.mutex);
}

}  // namespace
}  // namespace newmoon
