// Token ids as CBOR integers, the hot part of encoding a block. Ids are of all sizes
// in no order, and a mispredicted branch costs more than an id: none is taken.
// Internal to hash/. Any thread may call.
#pragma once

#include <cstdint>
#include <span>

namespace newmoon {

// Bytes that write_cbor_integers() may touch for `count` values: 5 a value, and up
// to 16 behind the last one.
constexpr std::size_t cbor_integers_room(std::size_t count) { return 5 * count + 16; }

// Writes each value in its shortest form; returns the end of the last.
// REQUIRES: cbor_integers_room(values.size()) bytes at `at`.
std::uint8_t* write_cbor_integers(std::uint8_t* at, std::span<const std::int32_t> values);

// The same without vector instructions, for other processors (and tests).
std::uint8_t* write_cbor_integers_portable(std::uint8_t* at, std::span<const std::int32_t> values);

}  // namespace newmoon
