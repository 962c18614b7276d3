// MooncakeStore and memory that Mooncake reads or writes where it lies: payloads in memory that the
// store knows, values in memory that this process lends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "base/contain.h"
#include "base/testing/out_of_memory.h"
#include "store/mooncake/testing/mooncake_store_fixture.h"
#include "store/mooncake/value_form.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests

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

TEST_F(RegisteredMemoryTest, WithRoomInFrontOfItAllIsOnePiece) {
  for (const std::size_t bytes : {100, 300'000}) {
    const std::size_t room = store().front_room_for(bytes);
    const Key key = key_of(1, bytes);
    const auto memory = std::make_shared<Bytes>(room + bytes);
    std::ranges::copy(TestBlock(bytes, key.block.event_int()).bytes(), memory->begin() + room);
    store().register_memory(memory, *memory);
    const ConstFragment payload = ByteView(*memory).subspan(room);
    PutItem put{key, make_header(key, test_layout(), bytes), {&payload, 1}};
    put.front_room = room;
    ASSERT_TRUE(store().put({&put, 1}).at(0));
    {
      MutexLock lock(fake_.mutex);
      const auto& pieces = fake_.pieces.at(key.to_string());
      ASSERT_EQ(pieces.size(), 1u);
      EXPECT_EQ(pieces[0].data, memory->data());
      EXPECT_EQ(pieces[0].bytes, memory->size());
    }
    EXPECT_TRUE(check_one(store(), key, bytes)) << bytes;
    // Nothing but the header is written there.
    EXPECT_THAT(ByteView(*memory).first(room).subspan(sizeof put.header), ::testing::Each(0));
    // Too little room is none.
    put.key = key_of(2, bytes);
    put.header = make_header(put.key, test_layout(), bytes);
    put.front_room = room - 1;
    ASSERT_TRUE(store().put({&put, 1}).at(0));
    MutexLock lock(fake_.mutex);
    EXPECT_EQ(fake_.pieces.at(put.key.to_string()).size(), 2u);
  }
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

// The slot is staged anew, with the same block under other weights, and put: a put that is late
// in the middle of its header must not go on in the new one's, with the new checksum.
TEST_F(RegisteredMemoryTest, ALatePutDoesNotReadTheNextOnesHeader) {
  impatient();
  constexpr std::size_t kBytes = 100;
  const std::size_t room = store().front_room_for(kBytes);
  const auto memory = std::make_shared<Bytes>(room + kBytes);
  store().register_memory(memory, *memory);
  const ConstFragment payload = ByteView(*memory).subspan(room);
  const auto stage_and_put = [&](const Key& key, std::uint8_t filler) {
    std::fill(memory->begin() + room, memory->end(), filler);
    PutItem item{key, make_header(key, test_layout(), kBytes), {&payload, 1}};
    item.front_room = room;
    return code_of(store().put({&item, 1}).at(0));
  };
  fake_.hold();
  {
    MutexLock lock(fake_.mutex);
    fake_.read_early = 80;  // all that tells whose the value is
  }
  ASSERT_EQ(stage_and_put(key_of(1, 1), 1), Code::kDeadline);
  fake_.await_waiting(1);
  stage_and_put(key_of(2, 1), 2);
  fake_.let_go();
  store_.reset();  // the calls have ended
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1), kBytes)), Code::kCorrupt);
}

// What it had begun by then goes on, for nobody.
TEST_F(RegisteredMemoryTest, APutThatBreaksOffIsLateAsWell) {
  constexpr std::size_t kBytes = 2'200'000;  // two are a call each
  const std::size_t room = store().front_room_for(kBytes);
  const auto memory = std::make_shared<Bytes>(room + kBytes);
  const ConstFragment payload = ByteView(*memory).subspan(room);
  const auto item = [&](std::uint64_t number) {
    const Key key = key_of(1, number);
    return PutItem{key, make_header(key, test_layout(), kBytes), {&payload, 1}, true, false, room};
  };
  const PutItem two[] = {item(1), item(2)};
  const PutItem next = item(3);
  int went_on = 0;
  for (std::size_t count = 0;; ++count) {
    store_.reset();
    {
      MutexLock lock(fake_.mutex);
      fake_.values.clear();
      fake_.pieces.clear();
    }
    store().register_memory(memory, *memory);
    {
      const NoMemoryAfter none(count);
      (void)contain([&] { store().put(two); });
      if (!none.has_failed()) break;
    }
    ASSERT_TRUE(store().put({&next, 1}).at(0));
    store_.reset();  // the calls have ended
    MutexLock lock(fake_.mutex);
    if (!fake_.values.contains(two[0].key.to_string())) continue;
    ++went_on;
    EXPECT_EQ(fake_.pieces.at(next.key.to_string()).size(), 2u) << count;
  }
  EXPECT_GT(went_on, 0);
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

}  // namespace
}  // namespace newmoon
