#include <cstddef>
#include <cstdint>

#include "admin/fuzz/decoders.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  newmoon::fuzz::check_request(newmoon::fuzz::to_frames({data, size}));
  return 0;
}
