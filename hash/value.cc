#include "hash/value.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "hash/sha256.h"
#include "hash/xxh3.h"

namespace newmoon {
namespace {

static_assert(std::endian::native == std::endian::little, "ValueHeader is written as it stands");
static_assert(offsetof(ValueHeader, payload_bytes) == 8 && offsetof(ValueHeader, layout_id) == 16 &&
              offsetof(ValueHeader, scope_id) == 32 && offsetof(ValueHeader, block_hash) == 48 &&
              offsetof(ValueHeader, shard) == 80 && offsetof(ValueHeader, checksum) == 88 &&
              offsetof(ValueHeader, flags) == 96 && offsetof(ValueHeader, block_hash_bytes) == 98 &&
              offsetof(ValueHeader, reserved) == 99);

constexpr std::size_t kLineBytes = 64;  // of the caches
// Copied and then hashed at a time, still in the L1 cache. Below 2,112 bytes, where glibc (2.36)
// begins to copy with `rep movsb` on some processors: seen to be half as fast on one of AMD's, and
// a fifth on another if both addresses are nearly alike within their pages.
constexpr std::size_t kChunkBytes = 32 * kLineBytes;
// So far ahead of it bytes are fetched: measured with one and two threads, 1 to 6 KiB.
constexpr std::size_t kAheadBytes = 2 * kChunkBytes;

// The C library's, out of the compiler's sight: GCC makes `rep movsq` of a memcpy of at most some
// KiB, and some processors are slow to read back what that has just written. A copy that is hashed
// on its way took twice as long.
void* (*const volatile copy_bytes)(void*, const void*, std::size_t) = std::memcpy;

// Has them fetched into the caches.
void prefetch([[maybe_unused]] ByteView bytes) {
#ifdef __SSE2__
  for (std::size_t i = 0; i < bytes.size(); i += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(bytes.data() + i), _MM_HINT_T0);
  }
#endif
}

// As memcpy, but past the caches where the processor can: an ordinary store first reads the
// line that it writes. For bytes not read again soon. stream_fence() makes them visible.
void stream_copy(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
#ifdef __SSE2__
  const std::size_t head = std::min(bytes, -reinterpret_cast<std::uintptr_t>(to) % kLineBytes);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLineBytes; to += kLineBytes, from += kLineBytes, bytes -= kLineBytes) {
    for (std::size_t i = 0; i < kLineBytes; i += sizeof(__m128i)) {
      const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), word);
    }
  }
#endif
  std::memcpy(to, from, bytes);
}

void stream_fence() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

ByteView first_chunk(ByteView bytes) { return bytes.first(std::min(bytes.size(), kChunkBytes)); }

// Chunk for chunk, with those to come on their way into the caches.
template <class Work>
void in_chunks(ByteView bytes, const Work& work) {
  while (!bytes.empty()) {
    prefetch(first_chunk(bytes.subspan(std::min(bytes.size(), kAheadBytes))));
    const ByteView chunk = first_chunk(bytes);
    bytes = bytes.subspan(chunk.size());
    work(chunk);
  }
}

// Copies pieces one after the other and, if asked, hashes them on the way.
class Copier {
 public:
  explicit Copier(bool checksum) {
    if (checksum) hash_.emplace();
  }

  void copy(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes) {
    in_chunks({from, bytes}, [&](ByteView chunk) {
      copy_bytes(to, chunk.data(), chunk.size());
      if (hash_) hash_->update({to, chunk.size()});
      to += chunk.size();
    });
  }

  // The same with stream_copy(). What is hashed is a copy, so that it is what arrives, even
  // if the source changes meanwhile.
  void stream(const std::uint8_t* from, std::uint8_t* to, std::size_t bytes) {
    in_chunks({from, bytes}, [&](ByteView chunk) {
      alignas(kLineBytes) std::array<std::uint8_t, kChunkBytes> copy;
      if (hash_) {
        copy_bytes(copy.data(), chunk.data(), chunk.size());
        chunk = {copy.data(), chunk.size()};
      }
      if (hash_) hash_->update(chunk);
      stream_copy(to, chunk.data(), chunk.size());
      to += chunk.size();
    });
  }

  std::uint64_t checksum() const { return hash_ ? hash_->digest() : 0; }

 private:
  std::optional<Xxh3> hash_;
};

template <class Fragments>
std::uint64_t sum_of_sizes(const Fragments& fragments) {
  std::uint64_t total = 0;
  for (const auto& fragment : fragments) total += fragment.size();
  return total;
}

template <class Fragments>
std::uint64_t checksum_of_each(const Fragments& fragments) {
  Xxh3 hash;
  for (const auto& fragment : fragments) {
    in_chunks(fragment, [&](ByteView chunk) { hash.update(chunk); });
  }
  return hash.digest();
}

std::unexpected<Error> corrupt(std::string_view field, std::string_view why) {
  return fail(Code::kCorrupt, "stored value: " + std::string(field) + " " + std::string(why));
}

// The fields that say how to read the others.
Status verify_form(const ValueHeader& seen, bool require_checksum) {
  constexpr std::string_view kUnknown = "is not of a value this version wrote";
  if (seen.magic != ValueHeader::kMagic) return corrupt("magic", kUnknown);
  if (seen.version != ValueHeader::kVersion) return corrupt("version", kUnknown);
  if (seen.header_bytes != sizeof(ValueHeader)) return corrupt("header_bytes", kUnknown);
  if ((seen.flags & ~ValueHeader::kChecksummed) != 0) return corrupt("flags", kUnknown);
  if (seen.reserved != ValueHeader{}.reserved) return corrupt("reserved", "is not zero");
  const bool checksummed = (seen.flags & ValueHeader::kChecksummed) != 0;
  if (require_checksum && !checksummed) return corrupt("checksum", "is missing");
  if (!checksummed && seen.checksum != 0) return corrupt("checksum", "is set without its flag");
  return {};
}

// The fields that say whose bytes these are.
Status verify_identity(const ValueHeader& seen, const ValueHeader& wanted) {
  constexpr std::string_view kOther = "is not the one asked for";
  if (seen.layout_id != wanted.layout_id) return corrupt("layout_id", kOther);
  if (seen.scope_id != wanted.scope_id) return corrupt("scope_id", kOther);
  if (seen.block_hash_bytes != wanted.block_hash_bytes) return corrupt("block_hash_bytes", kOther);
  if (seen.block_hash != wanted.block_hash) return corrupt("block_hash", kOther);
  if (seen.shard != wanted.shard) return corrupt("shard", kOther);
  if (seen.payload_bytes != wanted.payload_bytes) return corrupt("payload_bytes", kOther);
  return {};
}

}  // namespace

LayoutId layout_id(std::string_view layout) {
  const Sha256Digest digest = sha256(as_bytes(layout));
  LayoutId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

ValueHeader make_header(const Key& key, const LayoutId& layout, std::uint64_t payload_bytes) {
  ValueHeader header;
  header.payload_bytes = payload_bytes;
  header.layout_id = layout;
  header.scope_id = key.scope.bytes;
  header.block_hash_bytes = static_cast<std::uint8_t>(key.block.bytes().size());
  std::copy(key.block.bytes().begin(), key.block.bytes().end(), header.block_hash.begin());
  header.shard = key.shard.packed();
  return header;
}

bool names(const ValueHeader& header, const Key& key, std::uint64_t payload_bytes) {
  return verify_identity(header, make_header(key, header.layout_id, payload_bytes)).has_value();
}

void set_checksum(ValueHeader& header, std::uint64_t checksum) {
  header.checksum = checksum;
  header.flags |= ValueHeader::kChecksummed;
}

Status verify_header(const ValueHeader& seen, const Key& key, const LayoutId& layout,
                     std::uint64_t payload_bytes, std::uint64_t payload_checksum,
                     bool require_checksum) {
  if (Status form = verify_form(seen, require_checksum); !form) return form;
  const ValueHeader wanted = make_header(key, layout, payload_bytes);
  if (Status identity = verify_identity(seen, wanted); !identity) return identity;
  const bool checksummed = (seen.flags & ValueHeader::kChecksummed) != 0;
  if (checksummed && seen.checksum != payload_checksum) {
    return corrupt("checksum", "differs from that of the payload");
  }
  return {};
}

std::uint64_t total_bytes(std::span<const ConstFragment> fragments) {
  return sum_of_sizes(fragments);
}

std::uint64_t total_bytes(std::span<const Fragment> fragments) { return sum_of_sizes(fragments); }

std::uint64_t gather(std::span<const ConstFragment> from, MutableByteView to, bool checksum) {
  Copier copier(checksum);
  std::uint8_t* at = to.data();
  for (const ConstFragment& fragment : from) {
    copier.copy(fragment.data(), at, fragment.size());
    at += fragment.size();
  }
  return copier.checksum();
}

std::uint64_t scatter(ByteView from, std::span<const Fragment> to, bool checksum) {
  Copier copier(checksum);
  const std::uint8_t* at = from.data();
  for (const Fragment& fragment : to) {
    copier.stream(at, fragment.data(), fragment.size());
    at += fragment.size();
  }
  stream_fence();
  return copier.checksum();
}

std::uint64_t checksum_of(std::span<const ConstFragment> fragments) {
  return checksum_of_each(fragments);
}

std::uint64_t checksum_of(std::span<const Fragment> fragments) {
  return checksum_of_each(fragments);
}

}  // namespace newmoon
