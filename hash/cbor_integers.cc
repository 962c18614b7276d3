#include "hash/cbor_integers.h"

#include <array>

#include "base/bytes.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace newmoon {
namespace {

// The four forms of a value below 2^32: itself, or a head with 1, 2 or 4 bytes.
struct Form {
  std::uint8_t head;
  std::uint8_t bytes;
};
constexpr std::array<Form, 4> kForms = {{{0, 1}, {24, 2}, {25, 3}, {26, 5}}};

std::uint8_t* write_one(std::uint8_t* at, std::int32_t value) {
  // A negative n is major type 1 of -1 - n, which is ~n.
  const auto sign = static_cast<std::uint32_t>(value >> 31);
  const std::uint32_t argument = static_cast<std::uint32_t>(value) ^ sign;
  const Form& form = kForms[(argument > 23) + (argument > 0xff) + (argument > 0xffff)];
  const int shift = 8 * (8 - form.bytes);
  const std::uint64_t head = std::uint64_t{form.head} << 56 | std::uint64_t{sign & 1} << 61;
  store_be<std::uint64_t>(at, head | std::uint64_t{argument} << shift);
  return at + form.bytes;
}

#ifdef __x86_64__

// Takes two values, each as 4 little-endian bytes and 4 of which the first is its
// head, to their encoded bytes. Indexed by the forms of both, see write_four().
struct PairShuffle {
  std::array<std::uint8_t, 16> from;
  std::uint8_t bytes;
};

constexpr void append_shuffle(PairShuffle& shuffle, int value_at, const Form& form) {
  shuffle.from[shuffle.bytes++] = static_cast<std::uint8_t>(value_at + 4);
  for (int i = form.bytes - 2; i >= 0; --i) {
    shuffle.from[shuffle.bytes++] = static_cast<std::uint8_t>(value_at + i);
  }
}

// Index bits: low bits of both forms, then high bits of both.
constexpr std::array<PairShuffle, 16> make_pair_shuffles() {
  std::array<PairShuffle, 16> shuffles{};
  for (unsigned index = 0; index < shuffles.size(); ++index) {
    append_shuffle(shuffles[index], 0, kForms[(index & 1) | (index >> 1 & 2)]);
    append_shuffle(shuffles[index], 8, kForms[(index >> 1 & 1) | (index >> 2 & 2)]);
  }
  return shuffles;
}
constexpr std::array<PairShuffle, 16> kPairShuffles = make_pair_shuffles();

[[gnu::target("ssse3")]] inline std::uint8_t* write_pair(std::uint8_t* at, __m128i pair,
                                                         unsigned index) {
  const PairShuffle& shuffle = kPairShuffles[index];
  const __m128i from = _mm_loadu_si128(reinterpret_cast<const __m128i*>(shuffle.from.data()));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm_shuffle_epi8(pair, from));
  return at + shuffle.bytes;
}

[[gnu::target("ssse3")]] inline unsigned lane_signs(__m128i lanes) {
  return static_cast<unsigned>(_mm_movemask_ps(_mm_castsi128_ps(lanes)));
}

// REQUIRES: no negative value.
[[gnu::target("ssse3")]] inline std::uint8_t* write_four(std::uint8_t* at, __m128i values) {
  // All ones (-1) in the lanes of a form from 1, 2 or 3 on.
  const __m128i from_1 = _mm_cmpgt_epi32(values, _mm_set1_epi32(23));
  const __m128i from_2 = _mm_cmpgt_epi32(values, _mm_set1_epi32(0xff));
  const __m128i from_3 = _mm_cmpgt_epi32(values, _mm_set1_epi32(0xffff));
  const __m128i head = _mm_sub_epi32(_mm_sub_epi32(_mm_set1_epi32(24), from_2), from_3);
  const __m128i heads = _mm_or_si128(_mm_and_si128(from_1, head), _mm_andnot_si128(from_1, values));
  const unsigned low = lane_signs(_mm_xor_si128(_mm_xor_si128(from_1, from_2), from_3));
  const unsigned high = lane_signs(from_2);
  at = write_pair(at, _mm_unpacklo_epi32(values, heads), (low & 3) | (high & 3) << 2);
  return write_pair(at, _mm_unpackhi_epi32(values, heads), low >> 2 | (high & 12));
}

[[gnu::target("ssse3")]] std::uint8_t* write_by_fours(std::uint8_t* at,
                                                      std::span<const std::int32_t> values) {
  for (; values.size() >= 4; values = values.subspan(4)) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values.data()));
    at = lane_signs(four) == 0 ? write_four(at, four)
                               : write_cbor_integers_portable(at, values.first(4));
  }
  return values.empty() ? at : write_cbor_integers_portable(at, values);
}

#endif

}  // namespace

std::uint8_t* write_cbor_integers_portable(std::uint8_t* at, std::span<const std::int32_t> values) {
  for (const std::int32_t value : values) at = write_one(at, value);
  return at;
}

std::uint8_t* write_cbor_integers(std::uint8_t* at, std::span<const std::int32_t> values) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("ssse3")) return write_by_fours(at, values);
#endif
  return write_cbor_integers_portable(at, values);
}

}  // namespace newmoon
