#include "admin/msgpack_map.h"

#include <algorithm>
#include <exception>
#include <msgpack.hpp>
#include <utility>

namespace newmoon {
namespace {

constexpr int kDepthMax = 8;
constexpr std::size_t kElementsMax = 1024;

// What msgpack::packer writes to.
struct Sink {
  Bytes& out;
  void write(const char* data, std::size_t size) { append(out, as_bytes({data, size})); }
};

msgpack::packer<Sink> packer(Sink& sink) { return msgpack::packer<Sink>(sink); }

void pack_text(Bytes& out, std::string_view text) {
  Sink sink{out};
  packer(sink).pack_str(static_cast<std::uint32_t>(text.size()));
  append(out, as_bytes(text));
}

// True if the frame is one well-formed value that the visitor accepted. The library's
// parser keeps its own stack, which the visitor bounds by refusing to go deeper.
template <class Visitor>
bool parse_all(ByteView frame, Visitor& visitor) {
  try {
    std::size_t offset = 0;
    const char* data = reinterpret_cast<const char*>(frame.data());
    return msgpack::parse(data, frame.size(), offset, visitor) && offset == frame.size();
  } catch (const std::exception&) {
    return false;
  }
}

class StringsVisitor : public msgpack::null_visitor {
 public:
  explicit StringsVisitor(std::size_t items_max) : items_max_(items_max) {}

  bool start_array(std::uint32_t count) {
    // Not reserved by `count`: that is only what the peer says.
    return !std::exchange(started_, true) && count <= items_max_;
  }
  bool visit_str(const char* text, std::uint32_t size) {
    if (!started_) return false;
    strings_.emplace_back(text, size);
    return true;
  }
  bool start_map(std::uint32_t) { return false; }
  bool visit_nil() { return false; }
  bool visit_boolean(bool) { return false; }
  bool visit_positive_integer(std::uint64_t) { return false; }
  bool visit_negative_integer(std::int64_t) { return false; }
  bool visit_float32(float) { return false; }
  bool visit_float64(double) { return false; }
  bool visit_bin(const char*, std::uint32_t) { return false; }
  bool visit_ext(const char*, std::uint32_t) { return false; }

  std::vector<std::string_view> take() { return std::move(strings_); }

 private:
  std::size_t items_max_;
  bool started_ = false;
  std::vector<std::string_view> strings_;
};

}  // namespace

class MapVisitor : public msgpack::null_visitor {
 public:
  explicit MapVisitor(MsgpackMap& map) : map_(map) {}

  bool start_map(std::uint32_t) {
    if (depth_ == 0) {
      depth_ = 1;
      return true;
    }
    return enter();
  }
  bool start_array(std::uint32_t) {
    if (depth_ != 1 || in_key_) return depth_ > 0 && enter();
    if (!enter()) return false;
    map_.fields_.back().value = MsgpackMap::List();
    return true;
  }
  bool end_map() { return leave(); }
  bool end_array() { return leave(); }
  bool start_map_key() {
    if (depth_ == 1) in_key_ = true;
    return true;
  }
  bool end_map_key() {
    if (depth_ == 1) in_key_ = false;
    return true;
  }

  bool visit_str(const char* text, std::uint32_t size) {
    const std::string_view view(text, size);
    return depth_ == 1 && in_key_ ? add_key(view) : add(view);
  }
  bool visit_bin(const char* data, std::uint32_t size) { return add(as_bytes({data, size})); }
  bool visit_boolean(bool value) { return add(value); }
  bool visit_positive_integer(std::uint64_t value) { return add(value); }
  bool visit_negative_integer(std::int64_t) { return add(std::monostate()); }
  bool visit_nil() { return add(std::monostate()); }
  bool visit_float32(float) { return add(std::monostate()); }
  bool visit_float64(double) { return add(std::monostate()); }
  bool visit_ext(const char*, std::uint32_t) { return add(std::monostate()); }

 private:
  bool enter() { return add(std::monostate()) && ++depth_ <= kDepthMax; }
  bool leave() {
    --depth_;
    return true;
  }
  bool add_key(std::string_view key) {
    const auto same = [&](const MsgpackMap::Field& field) { return field.key == key; };
    if (++elements_ > kElementsMax || std::ranges::any_of(map_.fields_, same)) return false;
    map_.fields_.push_back({key, std::monostate()});
    return true;
  }
  bool add(const MsgpackMap::Scalar& value) {
    if (depth_ == 0 || (depth_ == 1 && in_key_) || ++elements_ > kElementsMax) return false;
    if (depth_ == 1) {
      std::visit([&](const auto& scalar) { map_.fields_.back().value = scalar; }, value);
    } else if (depth_ == 2) {
      auto* list = std::get_if<MsgpackMap::List>(&map_.fields_.back().value);
      if (list != nullptr) list->items.push_back(value);
    }
    return true;
  }

  MsgpackMap& map_;
  int depth_ = 0;
  bool in_key_ = false;
  std::size_t elements_ = 0;
};

Result<MsgpackMap> MsgpackMap::decode(ByteView frame) {
  MsgpackMap map;
  MapVisitor visitor(map);
  if (!parse_all(frame, visitor)) {
    return fail(Code::kBadRequest, "the last frame is not one msgpack map within the limits");
  }
  return map;
}

template <class T>
T MsgpackMap::get(std::string_view key, std::string_view type) {
  const auto field = std::ranges::find(fields_, key, &Field::key);
  const bool found = field != fields_.end();
  const T* value = found ? std::get_if<T>(&field->value) : nullptr;
  if (value != nullptr) return *value;
  const std::string problem = found ? "not " + std::string(type) : "missing";
  if (status_) status_ = fail(Code::kBadRequest, "'" + std::string(key) + "' is " + problem);
  return T();
}

template <class T>
std::vector<T> MsgpackMap::get_list(std::string_view key, std::string_view type) {
  std::vector<T> values;
  for (const Scalar& item : get<List>(key, type).items) {
    if (const T* value = std::get_if<T>(&item)) {
      values.push_back(*value);
    } else if (status_) {
      status_ = fail(Code::kBadRequest, "'" + std::string(key) + "' is not " + std::string(type));
    }
  }
  return values;
}

std::uint64_t MsgpackMap::uint64(std::string_view key) {
  return get<std::uint64_t>(key, "an unsigned integer");
}
bool MsgpackMap::boolean(std::string_view key) { return get<bool>(key, "a boolean"); }
std::string_view MsgpackMap::text(std::string_view key) {
  return get<std::string_view>(key, "a string");
}
ByteView MsgpackMap::bytes(std::string_view key) { return get<ByteView>(key, "a bin"); }

std::vector<std::string_view> MsgpackMap::texts(std::string_view key) {
  return get_list<std::string_view>(key, "a list of strings");
}
std::vector<ByteView> MsgpackMap::bins(std::string_view key) {
  return get_list<ByteView>(key, "a list of bins");
}
bool MsgpackMap::has(std::string_view key) const {
  return std::ranges::find(fields_, key, &Field::key) != fields_.end();
}

MsgpackMapWriter::MsgpackMapWriter(std::uint32_t pairs) {
  Sink sink{out_};
  packer(sink).pack_map(pairs);
}

MsgpackMapWriter& MsgpackMapWriter::put_uint64(std::string_view key, std::uint64_t value) {
  pack_text(out_, key);
  Sink sink{out_};
  packer(sink).pack_uint64(value);
  return *this;
}

MsgpackMapWriter& MsgpackMapWriter::put_boolean(std::string_view key, bool value) {
  pack_text(out_, key);
  Sink sink{out_};
  value ? packer(sink).pack_true() : packer(sink).pack_false();
  return *this;
}

MsgpackMapWriter& MsgpackMapWriter::put_text(std::string_view key, std::string_view value) {
  pack_text(out_, key);
  pack_text(out_, value);
  return *this;
}

MsgpackMapWriter& MsgpackMapWriter::put_bytes(std::string_view key, ByteView value) {
  std::ranges::copy(value, put_bytes(key, value.size()).begin());
  return *this;
}

MsgpackMapWriter& MsgpackMapWriter::put_texts(std::string_view key,
                                              std::span<const std::string_view> texts) {
  pack_text(out_, key);
  Sink sink{out_};
  packer(sink).pack_array(static_cast<std::uint32_t>(texts.size()));
  for (const std::string_view text : texts) pack_text(out_, text);
  return *this;
}

MsgpackMapWriter& MsgpackMapWriter::put_bins(std::string_view key, std::span<const Bytes> bins) {
  pack_text(out_, key);
  Sink sink{out_};
  packer(sink).pack_array(static_cast<std::uint32_t>(bins.size()));
  for (const Bytes& bin : bins) {
    packer(sink).pack_bin(static_cast<std::uint32_t>(bin.size()));
    append(out_, bin);
  }
  return *this;
}

MutableByteView MsgpackMapWriter::put_bytes(std::string_view key, std::size_t size) {
  pack_text(out_, key);
  Sink sink{out_};
  packer(sink).pack_bin(static_cast<std::uint32_t>(size));
  out_.resize(out_.size() + size);
  return MutableByteView(out_).last(size);
}

Result<std::vector<std::string_view>> decode_msgpack_strings(ByteView frame,
                                                             std::size_t items_max) {
  StringsVisitor visitor(items_max);
  if (!parse_all(frame, visitor)) {
    return fail(Code::kBadRequest, "not one msgpack list of strings within the limits");
  }
  return visitor.take();
}

Bytes encode_msgpack_strings(const std::vector<std::string>& strings) {
  Bytes out;
  Sink sink{out};
  packer(sink).pack_array(static_cast<std::uint32_t>(strings.size()));
  for (const std::string& text : strings) pack_text(out, text);
  return out;
}

}  // namespace newmoon
