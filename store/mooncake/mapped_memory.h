// What memory this process has mapped, by Linux's /proc/self/maps.
#pragma once

#include <cstdint>
#include <istream>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace newmoon {

struct AddressRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;  // behind the last byte
  bool operator==(const AddressRange&) const = default;
};

// Ascending and apart: neighbours are one range.
using AddressRanges = std::vector<AddressRange>;

// All that can be read and written. Lines that are none of the kernel's are passed over.
AddressRanges read_maps(std::istream& maps);
AddressRanges writable_memory();

// Ranges of `after` that are not in `before`, of `bytes_min` or more.
AddressRanges added_memory(const AddressRanges& before, const AddressRanges& after,
                           std::uint64_t bytes_min);

// Copies what lies at an address that may be mapped no more. False: nothing was copied.
bool read_if_mapped(std::uintptr_t address, MutableByteView to);

bool contains(std::span<const AddressRange> ranges, ByteView memory);

}  // namespace newmoon
