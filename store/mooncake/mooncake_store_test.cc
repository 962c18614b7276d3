// MooncakeStore over a client that does as told; over the real one in
// store/conformance_test.cc and store/mooncake/mooncake_real_test.cc.
#include "store/mooncake/mooncake_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>

#include "store/mooncake/record_key.h"
#include "store/mooncake/testing/fake_client.h"
#include "store/mooncake/value_form.h"
#include "store/testing/blocks.h"
#include "store/testing/manual_time.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using std::chrono::milliseconds;
using ::testing::HasSubstr;

Code code_of(const auto& result) { return result ? Code::kInternal : result.error().code; }

class MooncakeStoreTest : public ::testing::Test {
 protected:
  MooncakeStoreTest() {
    config_.master_server_address = "127.0.0.1:1";
    config_.local_buffer_bytes = 4 << 20;
    options_.timeout = std::chrono::seconds(10);
  }
  ~MooncakeStoreTest() override { fake_.let_go(); }

  MooncakeStore& store() {
    if (store_ == nullptr) {
      auto opened =
          MooncakeStore::open_with([this] { return make_client(); }, config_, *clock_, options_);
      if (!opened) throw std::runtime_error(opened.error().message);
      store_ = std::move(*opened);
    }
    return *store_;
  }
  std::unique_ptr<MooncakeClient> make_client() {
    return std::make_unique<FakeMooncakeClient>(shared_fake_);
  }
  // Of a store not opened yet: a call that hangs in the wheel makes its caller wait no longer
  // than that, and only such a call is ever late.
  void impatient() {
    clock_ = &wheel_clock_;
    options_.timeout = milliseconds(100);
  }
  // Where a get was to put its bytes that ended at its deadline: the wheel hangs from now on.
  TestBlock get_while_the_wheel_hangs() {
    store_.reset();
    impatient();
    store();
    fake_.hold();
    TestBlock into(100, 12345);
    EXPECT_EQ(code_of(get_one(*store_, key_of(1, 1), into)), Code::kDeadline);
    return into;
  }

  MooncakeConfig config_;
  MooncakeOptions options_;
  const std::shared_ptr<FakeMooncake> shared_fake_ = std::make_shared<FakeMooncake>();
  FakeMooncake& fake_ = *shared_fake_;
  SystemClock system_clock_;
  WheelClock wheel_clock_{fake_};
  ManualClock manual_clock_;
  Clock* clock_ = &system_clock_;
  std::unique_ptr<MooncakeStore> store_;
};

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

// --- registered memory -------------------------------------------------------------

class RegisteredMemoryTest : public MooncakeStoreTest {
 protected:
  // What the wheel was given for a put of `item`: by piece, whether it lay in memory_.
  std::vector<bool> pieces_in_place(const PutItem& item) {
    EXPECT_TRUE(store().put({&item, 1}).at(0));
    MutexLock lock(fake_.mutex);
    std::vector<bool> in_place;
    for (const MooncakeBuffer& piece : fake_.pieces.at(item.key.to_string())) {
      in_place.push_back(piece.data >= memory_->data() &&
                         piece.data < memory_->data() + memory_->size());
    }
    return in_place;
  }
  PutItem item(std::uint64_t number) {
    const Key key = key_of(1, number);
    return {key, make_header(key, test_layout(), memory_->size()), payload_};
  }

  std::shared_ptr<Bytes> memory_ = std::make_shared<Bytes>(TestBlock(100, 1).bytes());
  std::array<ConstFragment, 2> payload_ = {ByteView(*memory_).first(60),
                                           ByteView(*memory_).subspan(60)};
};

TEST_F(RegisteredMemoryTest, APayloadInItIsReadWhereItIs) {
  store().register_memory(memory_, *memory_);
  EXPECT_THAT(pieces_in_place(item(1)), ::testing::ElementsAre(false, true, true));
  EXPECT_TRUE(check_one(store(), key_of(1, 1)));
  const long before = memory_.use_count();
  store_.reset();
  EXPECT_LT(memory_.use_count(), before);
}

TEST_F(RegisteredMemoryTest, WhatIsNotAllInItOrHasNoChecksumIsCopied) {
  store().register_memory(memory_, ByteView(*memory_).first(99));
  EXPECT_THAT(pieces_in_place(item(1)), ::testing::ElementsAre(false));
  store().register_memory(memory_, *memory_);
  PutItem unchecked = item(2);
  unchecked.checksum = false;
  EXPECT_THAT(pieces_in_place(unchecked), ::testing::ElementsAre(false));
}

TEST_F(RegisteredMemoryTest, ThatTheWheelDoesNotTakeIsCopiedFrom) {
  store();
  fake_.set_code("register_buffer", -600);
  store().register_memory(memory_, *memory_);
  EXPECT_THAT(pieces_in_place(item(1)), ::testing::ElementsAre(false));
}

// The slot holds another block by the time the wheel reads it.
TEST_F(RegisteredMemoryTest, WhatChangesUnderALatePutFailsItsChecksum) {
  impatient();
  store().register_memory(memory_, *memory_);
  fake_.hold();
  const PutItem late = item(1);
  EXPECT_EQ(code_of(store().put({&late, 1}).at(0)), Code::kDeadline);
  fake_.await_waiting(1);
  memory_->front() ^= 1;
  fake_.let_go();
  store_.reset();  // the call has ended
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1))), Code::kCorrupt);
}

// --- memory that this process lends ------------------------------------------------

class LentMemoryTest : public MooncakeStoreTest {
 protected:
  LentMemoryTest() {
    fake_.lends = true;
    config_.global_segment_bytes = 64 << 20;
    store();
    fake_.set_code("get", -900);  // what does not lie here is not to be had
  }

  // A value as a put would have left it at an offset of the lent memory.
  MutableByteView place(std::uint64_t number, std::size_t offset, std::size_t payload_bytes = 100) {
    const Key key = key_of(1, number);
    const TestBlock block(payload_bytes, key.block.event_int());
    ValueHeader header = make_header(key, test_layout(), payload_bytes);
    set_checksum(header, checksum_of(block.source()));
    std::uint8_t* const at = fake_.lent.data() + offset;
    std::memcpy(at, &header, sizeof header);
    std::ranges::copy(block.bytes(), at + payload_offset(payload_bytes));
    const MutableByteView value{at, stored_bytes(payload_bytes)};
    locate(number, value);
    return value;
  }
  void locate(std::uint64_t number, ByteView value) {
    MutexLock lock(fake_.mutex);
    fake_.replicas[key_of(1, number).to_string()] = {
        {const_cast<std::uint8_t*>(value.data()), value.size()}};
  }
};

TEST_F(LentMemoryTest, AValueInItIsReadWhereItLies) {
  place(1, 4096);
  EXPECT_TRUE(check_one(store(), key_of(1, 1)));
}

TEST_F(LentMemoryTest, SoIsALargeOne) {
  constexpr std::size_t kBytes = 300'000;
  place(1, 4096, kBytes);
  EXPECT_TRUE(check_one(store(), key_of(1, 1), kBytes));
}

TEST_F(LentMemoryTest, ManyAreSharedOut) {
  constexpr std::size_t kBytes = 100'000;
  std::vector<TestBlock> targets;
  std::vector<GetItem> gets;
  for (std::uint64_t i = 0; i < 60; ++i) {
    place(i, i * (kBytes + 1000), kBytes);
    targets.emplace_back(kBytes, 9'999);
  }
  for (std::uint64_t i = 0; i < 60; ++i) gets.push_back({key_of(1, i), targets[i].target()});
  const auto values = store().get(gets);
  for (std::uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(values[i]) << values[i].error().message;
    EXPECT_EQ(values[i]->header.checksum, values[i]->payload_checksum);
    EXPECT_EQ(targets[i].bytes(), TestBlock(kBytes, key_of(1, i).block.event_int()).bytes());
  }
}

// Each is what another process's value under the same address, or one being written over, may
// look like from here.
TEST_F(LentMemoryTest, WhatDoesNotProveToBeTheValueComesByTheWheel) {
  const std::pair<const char*, std::function<void(MutableByteView)>> cases[] = {
      {"of another key", [&](MutableByteView) { locate(1, place(2, 8192)); }},
      {"torn", [](MutableByteView value) { value[sizeof(ValueHeader) + 50] ^= 1; }},
      {"without a checksum", [](MutableByteView value) { value[96] = 0; }},
      {"longer", [&](MutableByteView value) { locate(1, {value.data(), value.size() + 1}); }},
      {"behind the end",
       [&](MutableByteView) {
         locate(1, ByteView(fake_.lent.data() + fake_.lent.size() - 4, 228));
       }},
      {"elsewhere",
       [&](MutableByteView value) {
         static Bytes heap;
         heap.assign(value.begin(), value.end());
         locate(1, heap);
       }},
  };
  for (const auto& [name, spoil] : cases) {
    spoil(place(1, 4096));
    EXPECT_EQ(code_of(check_one(store(), key_of(1, 1))), Code::kUnavailable) << name;
  }
  fake_.set_code("get", 0);
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  for (const auto& [name, spoil] : cases) {
    spoil(place(1, 4096));
    EXPECT_TRUE(check_one(store(), key_of(1, 1))) << name;
  }
}

TEST_F(LentMemoryTest, AWheelThatDoesNotSayWhereIsAskedForTheValue) {
  fake_.set_code("get", 0);
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  {
    MutexLock lock(fake_.mutex);
    fake_.location_error = "mooncake batch_get_replica_desc: TypeError: no";
  }
  EXPECT_TRUE(check_one(store(), key_of(1, 1)));
  MutexLock lock(fake_.mutex);
  EXPECT_EQ(fake_.located, 1);
}

TEST_F(LentMemoryTest, AnAddressThatIsMappedNoMoreIsNotReadThere) {
  const MutableByteView value = place(1, 32 << 20);
  const auto page = reinterpret_cast<std::uintptr_t>(value.data()) & ~std::uintptr_t{4095};
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  ASSERT_EQ(munmap(reinterpret_cast<void*>(page), 4096), 0);
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1))), Code::kUnavailable);
}

TEST_F(LentMemoryTest, AMasterThatHangsIsADeadline) {
  place(1, 4096);
  const TestBlock into = get_while_the_wheel_hangs();
  EXPECT_EQ(into.bytes(), TestBlock(100, 12345).bytes());
}

TEST_F(MooncakeStoreTest, WhoLendsNothingIsNotAskedWhereValuesLie) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  EXPECT_TRUE(check_one(store(), key_of(1, 1)));
  MutexLock lock(fake_.mutex);
  EXPECT_EQ(fake_.located, 0);
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
