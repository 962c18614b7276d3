// The little msgpack that the admin channel uses: one flat map a message, whose values may
// be lists, and the seed's list of strings. Reading is bounded in depth and in elements before
// anything is allocated, so that no frame can cost more than a walk over its own bytes. Only
// msgpack_map.cc knows the msgpack library.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace newmoon {

// A decoded map with string keys. Its values point into the frame it was decoded from.
// Keys that are not asked for are ignored: a newer peer may send more.
class MsgpackMap {
 public:
  // kBadRequest: no map, broken or trailing bytes, a key that is no string or comes
  // twice, nested deeper than 8, or more than 1,024 elements.
  static Result<MsgpackMap> decode(ByteView frame);

  // A key that is not there or has another type reads as empty and fails status(), so
  // that a message is read field by field and judged once.
  std::uint64_t uint64(std::string_view key);
  bool boolean(std::string_view key);
  std::string_view text(std::string_view key);
  ByteView bytes(std::string_view key);
  // Lists of strings, and of bins.
  std::vector<std::string_view> texts(std::string_view key);
  std::vector<ByteView> bins(std::string_view key);
  bool has(std::string_view key) const;

  // kBadRequest: the first wrong key and what is wrong with it.
  const Status& status() const { return status_; }

 private:
  friend class MapVisitor;
  // monostate: of a type that no message of ours holds.
  using Scalar = std::variant<std::monostate, bool, std::uint64_t, std::string_view, ByteView>;
  struct List {
    std::vector<Scalar> items;
  };
  using Value = std::variant<std::monostate, bool, std::uint64_t, std::string_view, ByteView, List>;
  struct Field {
    std::string_view key;
    Value value;
  };

  template <class T>
  T get(std::string_view key, std::string_view type);
  template <class T>
  std::vector<T> get_list(std::string_view key, std::string_view type);

  std::vector<Field> fields_;
  Status status_;
};

// Writes a map, pair by pair.
class MsgpackMapWriter {
 public:
  // REQUIRES: `pairs` puts follow.
  explicit MsgpackMapWriter(std::uint32_t pairs);

  MsgpackMapWriter& put_uint64(std::string_view key, std::uint64_t value);
  MsgpackMapWriter& put_boolean(std::string_view key, bool value);
  MsgpackMapWriter& put_text(std::string_view key, std::string_view value);
  MsgpackMapWriter& put_bytes(std::string_view key, ByteView value);
  MsgpackMapWriter& put_texts(std::string_view key, std::span<const std::string_view> texts);
  MsgpackMapWriter& put_bins(std::string_view key, std::span<const Bytes> bins);
  // A bin of `size` bytes for the caller to fill before the next put.
  MutableByteView put_bytes(std::string_view key, std::size_t size);

  Bytes take() { return std::move(out_); }

 private:
  Bytes out_;
};

// A list of strings and nothing else; they point into the frame. kBadRequest: anything
// else, trailing bytes, or more than `items_max`.
Result<std::vector<std::string_view>> decode_msgpack_strings(ByteView frame, std::size_t items_max);
Bytes encode_msgpack_strings(const std::vector<std::string>& strings);

}  // namespace newmoon
