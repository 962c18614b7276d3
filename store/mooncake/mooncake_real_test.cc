// What only the real wheel and master can show; the contract is in
// store/conformance_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "store/make_store.h"
#include "store/mooncake/mooncake_store.h"
#include "store/testing/blocks.h"
#include "store/testing/mooncake_master.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Code code_of(const auto& result) { return result ? Code::kInternal : result.error().code; }

class MooncakeReal : public ::testing::Test {
 protected:
  static constexpr const char* kLent = "&local_buffer_size=64mb&global_segment_size=64mb";

  // Without the circuit breaker that make_store() puts around it.
  std::unique_ptr<MooncakeStore> open(const std::string& url,
                                      Duration timeout = std::chrono::seconds(20)) {
    MooncakeOptions options;
    options.timeout = timeout;
    options.start_timeout = kTestStartTimeout;
    auto store = MooncakeStore::open(*load_mooncake_config(url + kLent), clock_, options);
    if (!store) throw std::runtime_error(to_string(store.error()));  // ends the test, failed
    return std::move(*store);
  }
  Error open_error(const std::string& url) {
    const auto store = make_store(url, {}, clock_, executor_);
    return store ? Error{Code::kInternal, "it opened"} : store.error();
  }
  // Until it holds; the test's own timeout ends the wait otherwise.
  void wait_until(const std::function<bool()>& holds) {
    while (!holds()) clock_.sleep_until(clock_.now() + std::chrono::milliseconds(5));
  }

  // Where the store's patience is short: on a busy machine the first put may end after it.
  void put_in_time(KvStore& store, const Key& key) {
    wait_until([&] { return put_one(store, key).has_value(); });
  }

  SystemClock clock_;
  InlineExecutor executor_;
};

TEST_F(MooncakeReal, WithoutAMasterItSaysSoAndWhatToDo) {
  MooncakeMaster master = start_mooncake_master(clock_);
  master.kill();
  const Error error = open_error(master.url());
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.message, AllOf(HasSubstr("no master"), HasSubstr(master.address()),
                                   HasSubstr("./dev mooncake"), Not(HasSubstr("\n"))));
}

TEST_F(MooncakeReal, WithoutTheWheelItSaysWhatInstallsIt) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const char* const before = std::getenv("NEWMOON_MOONCAKE_DIR");
  const std::string saved = before == nullptr ? "" : before;
  setenv("NEWMOON_MOONCAKE_DIR", "/nowhere", 1);
  const Error error = open_error(master.url());
  setenv("NEWMOON_MOONCAKE_DIR", saved.c_str(), 1);
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.message, AllOf(HasSubstr("/nowhere"), HasSubstr("NEWMOON_MOONCAKE_DIR")));
}

TEST_F(MooncakeReal, ASegmentThatMooncakeDoesNotTakeIsRefusedInOneLine) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const Error error = open_error(master.url() + "&global_segment_size=1mb");
  EXPECT_EQ(error.code, Code::kBadRequest);
  EXPECT_THAT(error.message, AllOf(HasSubstr("setup"), Not(HasSubstr("\n"))));
}

TEST_F(MooncakeReal, AProtocolThatMooncakeDoesNotHaveIsNamed) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const Error error = open_error(master.url() + "&protocol=bogus");
  EXPECT_THAT(error.message, AllOf(HasSubstr("protocol 'bogus'"), Not(HasSubstr("\n"))));
}

TEST_F(MooncakeReal, SignalHandlersAndStandardErrorStayTheProgramsOwn) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const std::array signals = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGSEGV, SIGBUS, SIGFPE, SIGURG};
  std::array<struct sigaction, signals.size()> before{}, after{};
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], nullptr, &before[i]);
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  {
    const auto store = open(master.url());
    EXPECT_TRUE(put_one(*store, key_of(1, 1)));
    EXPECT_EQ(code_of(check_one(*store, key_of(1, 1), 50)), Code::kBadRequest);  // the wheel logs
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], nullptr, &after[i]);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  for (std::size_t i = 0; i < signals.size(); ++i) {
    EXPECT_EQ(before[i].sa_handler, after[i].sa_handler) << signals[i];
  }
}

TEST_F(MooncakeReal, TheWheelsLogGoesToOursAtDebugLevel) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  Mutex mutex;
  std::vector<std::string> lines;
  set_log_threshold(LogLevel::kDebug);
  set_log_sink([&](LogLevel level, std::string_view component, std::string_view message) {
    MutexLock lock(mutex);
    if (level == LogLevel::kDebug && component == "mooncake") lines.emplace_back(message);
  });
  open(master.url()).reset();
  set_log_sink({});
  set_log_threshold(LogLevel::kWarning);
  MutexLock lock(mutex);
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("Mounting segment")));
}

TEST_F(MooncakeReal, TwoEnginesShareValuesDescriptionsAndHolds) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const auto one = open(master.url());
  const auto other = open(master.url());
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(put_one(*one, key_of(1, i), 5000));
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(check_one(*other, key_of(1, i), 5000)) << i;
  one->describe_scope(scope_of(1), "weights of step 41");
  one->describe_scope(scope_of(1), "weights of step 42");
  ASSERT_TRUE(one->hold_scope(scope_of(1), "engine-a", std::chrono::hours(1)));
  wait_until([&] { return other->list_scopes()->at(0).description == "weights of step 42"; });
  const auto scopes = other->list_scopes();
  ASSERT_EQ(scopes->size(), 1u);
  EXPECT_EQ(scopes->at(0).holders, std::vector<std::string>{"engine-a"});
  EXPECT_EQ(scopes->at(0).blocks, 20u);
}

// What LentSearch builds on.
TEST_F(MooncakeReal, WhatThisProcessLendsLiesWhereTheMasterSays) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const AddressRanges before = writable_memory();
  const auto store = open(master.url());
  const AddressRanges lent = added_memory(before, writable_memory(), 64 << 20);
  ASSERT_TRUE(put_one(*store, key_of(1, 1), 5000));
  const std::string keys[] = {key_of(1, 1).to_string(), key_of(1, 2).to_string()};
  const std::string_view views[] = {keys[0], keys[1]};
  std::vector<MooncakeBuffer> replicas[2];
  ASSERT_TRUE(store->client().batch_get_replica_desc(views, replicas));
  ASSERT_EQ(replicas[0].size(), 1u);
  EXPECT_THAT(replicas[1], ::testing::IsEmpty());
  EXPECT_EQ(replicas[0][0].bytes, sizeof(ValueHeader) + 5000);
  const auto* const value = static_cast<const std::uint8_t*>(replicas[0][0].data);
  ASSERT_TRUE(contains(lent, {value, replicas[0][0].bytes}));
  EXPECT_EQ(std::string(value, value + 4), "VKNM");
}

// What payload_offset() builds on.
TEST_F(MooncakeReal, ValuesOfWholePagesLieOnPages) {
  constexpr std::size_t kBytes = 360 << 10;
  const MooncakeMaster master = start_mooncake_master(clock_);
  const auto store = open(master.url());
  for (std::uint64_t number : {1, 2, 3}) ASSERT_TRUE(put_one(*store, key_of(1, number), kBytes));
  for (std::uint64_t number : {1, 2, 3}) {
    const std::string key = key_of(1, number).to_string();
    const std::string_view view = key;
    std::vector<MooncakeBuffer> replicas;
    ASSERT_TRUE(store->client().batch_get_replica_desc({&view, 1}, {&replicas, 1}));
    ASSERT_EQ(replicas.size(), 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(replicas[0].data) % 4096, 0u) << number;
    EXPECT_TRUE(check_one(*store, key_of(1, number), kBytes));
  }
}

TEST_F(MooncakeReal, OtherProgramsKeysAreNeitherListedNorPurged) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const auto store = open(master.url());
  auto& client = store->client();
  std::vector<std::uint8_t> memory(64, 1);
  ASSERT_TRUE(client.register_buffer({memory.data(), memory.size()}));
  const std::string foreign = "model@tp_rank:0@" + key_prefix(scope_of(1)) + "x";
  ASSERT_EQ(client.upsert_from(foreign, {memory.data(), memory.size()}), 0);
  ASSERT_TRUE(put_one(*store, key_of(1, 1)));
  EXPECT_EQ(store->list_scopes()->size(), 1u);
  EXPECT_EQ(store->stats()->blocks, 1u);
  ASSERT_TRUE(store->purge_scope(scope_of(1), true));
  wait_until([&] { return store->stats()->unfinished_purges == 0; });
  EXPECT_EQ(client.get_size(foreign), 64);
  EXPECT_EQ(client.get_size(key_of(1, 1).to_string()), -704);
}

// The lease that a lookup grants does not keep a value from a purge.
TEST_F(MooncakeReal, LeasedValuesArePurged) {
  const MooncakeMaster master = start_mooncake_master(clock_, {"--default_kv_lease_ttl=600s"});
  const auto store = open(master.url());
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(put_one(*store, key_of(1, i)));
  EXPECT_TRUE(is_there(*store, key_of(1, 50)));
  ASSERT_TRUE(store->purge_scope(scope_of(1), true));
  wait_until([&] { return store->stats()->unfinished_purges == 0; });
  auto& client = store->client();
  EXPECT_EQ(client.get_size(key_of(1, 50).to_string()), -704);
}

TEST_F(MooncakeReal, AFullStoreIsBusyAndTakesValuesAgain) {
  const MooncakeMaster master = start_mooncake_master(clock_);
  const auto store = open(master.url());
  std::uint64_t stored = 0;
  Status status;
  while ((status = put_one(*store, key_of(1, stored), 1 << 20))) {
    ASSERT_LT(++stored, 200u);
  }
  EXPECT_EQ(status.error().code, Code::kBusy);
  EXPECT_GE(stored, 40u);
  std::uint64_t block = 1000;  // once leases have ended the master gives up old values
  wait_until([&] { return put_one(*store, key_of(1, block++), 1 << 20).has_value(); });
  EXPECT_GT(store->stats()->evicted_blocks, 0u);
}

TEST_F(MooncakeReal, ADeadMasterIsAnErrorWithinTheDeadlineAndAMissOnceItIsBack) {
  MooncakeMaster master = start_mooncake_master(clock_);
  const auto store = open(master.url(), std::chrono::milliseconds(500));
  put_in_time(*store, key_of(1, 1));
  master.kill();
  const Shard shard;
  const std::vector<BlockHash> blocks = blocks_of(1, 1);
  const Time begun = clock_.now();
  EXPECT_FALSE(store->hit_prefix(scope_of(1), {&shard, 1}, blocks));
  EXPECT_FALSE(put_one(*store, key_of(1, 2)));
  EXPECT_FALSE(check_one(*store, key_of(1, 1)));
  EXPECT_FALSE(store->remove_all());
  EXPECT_FALSE(store->stats());
  EXPECT_TRUE(store->purge_scope(scope_of(9), true));
  // Five calls of half a second; the wheel's own take 4.5 s each.
  EXPECT_LT(clock_.now() - begun, std::chrono::seconds(10));
  ASSERT_TRUE(master.restart());
  put_in_time(*store, key_of(1, 3));
  wait_until([&] { return check_one(*store, key_of(1, 3)).has_value(); });
  Status lost;
  wait_until([&] { return code_of(lost = check_one(*store, key_of(1, 1))) != Code::kDeadline; });
  EXPECT_EQ(code_of(lost), Code::kMiss);
}

TEST_F(MooncakeReal, APingTellsADeadMasterAndOneThatHangs) {
  MooncakeMaster master = start_mooncake_master(clock_);
  const auto store = open(master.url(), std::chrono::milliseconds(500));
  wait_until([&] { return store->ping().has_value(); });
  kill(master.pid(), SIGSTOP);  // its threads stop one after the other
  wait_until([&] { return !store->ping(); });
  kill(master.pid(), SIGCONT);
  wait_until([&] { return store->ping().has_value(); });
  master.kill();
  EXPECT_FALSE(store->ping());
}

TEST_F(MooncakeReal, TheEndIsBoundedWithADeadMaster) {
  MooncakeMaster master = start_mooncake_master(clock_);
  auto store = open(master.url(), std::chrono::milliseconds(200));
  put_in_time(*store, key_of(1, 1));
  master.kill();
  (void)store->ping();
  EXPECT_FALSE(put_one(*store, key_of(1, 2)));
  const Time begun = clock_.now();
  store.reset();
  EXPECT_LT(clock_.now() - begun, std::chrono::seconds(4));  // the wheel's call alone: 4.5 s
}

}  // namespace
}  // namespace newmoon
