// Replaces operator new of a test binary, so that base/testing/out_of_memory.h can make it
// fail. Include it in exactly one file of the binary.
#pragma once

#include <cstdlib>
#include <new>

#include "base/testing/out_of_memory.h"

// Not inlined: gcc would take free() of what a `new` expression gave for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (newmoon::testing::new_fails(bytes)) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// The other scalar forms too, libraries' calls included: what a sanitizer's own new gave is not
// for free().
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return newmoon::testing::new_fails(bytes) ? nullptr : std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
