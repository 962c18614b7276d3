#include "store/mooncake/mapped_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace newmoon {

AddressRanges read_maps(std::istream& maps) {
  AddressRanges ranges;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    char readable = 0;
    char writable = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %c%c", &begin, &end, &readable, &writable) != 4)
      continue;
    if (readable != 'r' || writable != 'w') continue;
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

AddressRanges writable_memory() {
  std::ifstream maps("/proc/self/maps");
  return read_maps(maps);
}

AddressRanges added_memory(const AddressRanges& before, const AddressRanges& after,
                           std::uint64_t bytes_min) {
  AddressRanges added;
  const auto add = [&](std::uintptr_t begin, std::uintptr_t end) {
    if (begin < end && end - begin >= bytes_min) added.push_back({begin, end});
  };
  for (const AddressRange& range : after) {
    std::uintptr_t at = range.begin;
    for (const AddressRange& old : before) {
      if (old.end <= at || old.begin >= range.end) continue;
      add(at, old.begin);
      at = old.end;
    }
    add(at, range.end);
  }
  return added;
}

bool read_if_mapped(std::uintptr_t address, MutableByteView to) {
  const iovec here{to.data(), to.size()};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel looks whether it is one
  const iovec there{reinterpret_cast<void*>(address), to.size()};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == std::ssize(to);
}

bool contains(std::span<const AddressRange> ranges, ByteView memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  return std::ranges::any_of(ranges, [&](const AddressRange& range) {
    return begin >= range.begin && begin < range.end && memory.size() <= range.end - begin;
  });
}

}  // namespace newmoon
