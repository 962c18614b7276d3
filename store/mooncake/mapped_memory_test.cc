#include "store/mooncake/mapped_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <sstream>

namespace newmoon {
namespace {

TEST(ReadMaps, NeighboursThatCanBeWrittenAreOneRange) {
  std::istringstream maps(
      "1000-2000 rw-p 00000000 00:00 0\n"
      "2000-3000 rw-s 00000000 00:01 24   /memfd:x (deleted)\n"
      "3000-4000 r--p 00000000 00:00 0\n"
      "4000-5000 ---p 00000000 00:00 0\n"
      "7f0000000000-7f0000001000 rw-p 00000000 00:00 0   [stack]\n"
      "nonsense\n");
  EXPECT_EQ(read_maps(maps), (AddressRanges{{0x1000, 0x3000}, {0x7f0000000000, 0x7f0000001000}}));
}

TEST(AddedMemory, IsWhatWasNotThereBefore) {
  const AddressRanges before = {{10, 20}, {40, 50}};
  EXPECT_EQ(added_memory(before, {{5, 25}, {40, 50}, {70, 80}}, 1),
            (AddressRanges{{5, 10}, {20, 25}, {70, 80}}));
  EXPECT_EQ(added_memory(before, {{0, 100}}, 20), (AddressRanges{{20, 40}, {50, 100}}));
  EXPECT_EQ(added_memory(before, {{12, 18}, {41, 45}}, 1), AddressRanges());
}

TEST(Contains, AllOfItInOneRange) {
  const auto view = [](std::uintptr_t begin, std::size_t bytes) {
    return ByteView(reinterpret_cast<const std::uint8_t*>(begin), bytes);
  };
  const AddressRanges ranges = {{100, 200}, {300, 400}};
  EXPECT_TRUE(contains(ranges, view(100, 100)));
  EXPECT_TRUE(contains(ranges, view(399, 1)));
  EXPECT_FALSE(contains(ranges, view(99, 2)));
  EXPECT_FALSE(contains(ranges, view(199, 2)));
  EXPECT_FALSE(contains(ranges, view(150, SIZE_MAX)));
  EXPECT_FALSE(contains(ranges, view(200, 0)));
}

TEST(WritableMemory, AMappingAddsItself) {
  constexpr std::size_t kBytes = 32 << 20;
  const AddressRanges before = writable_memory();
  void* const mapped =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const AddressRanges added = added_memory(before, writable_memory(), kBytes);
  EXPECT_TRUE(contains(added, {static_cast<const std::uint8_t*>(mapped), kBytes}));
  const int on_stack = 0;
  EXPECT_FALSE(contains(added, {reinterpret_cast<const std::uint8_t*>(&on_stack), 1}));
  munmap(mapped, kBytes);
}

TEST(ReadIfMapped, CopiesOrSaysThatThereIsNothing) {
  const Bytes here = {1, 2, 3};
  Bytes to(3);
  EXPECT_TRUE(read_if_mapped(reinterpret_cast<std::uintptr_t>(here.data()), to));
  EXPECT_EQ(to, here);
  EXPECT_FALSE(read_if_mapped(16, to));
}

}  // namespace
}  // namespace newmoon
