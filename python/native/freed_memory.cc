#include "python/native/freed_memory.h"

#include <cstddef>
#include <cstdlib>

namespace newmoon {
namespace {

// Up to twice as much stays with the process.
constexpr std::size_t kLargestBufferBytes = 16u << 20;

}  // namespace

void keep_freed_memory() {
  void* volatile buffer = std::malloc(kLargestBufferBytes);  // not to be optimized away
  std::free(buffer);
}

}  // namespace newmoon
