#include "store/mooncake/transfer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "store/mooncake/error_code.h"
#include "store/mooncake/value_form.h"
#include "store/other_length.h"

namespace newmoon {
namespace {

constexpr std::size_t kBatchItems = 512;
// Of values that are worked on. Two of 2 MiB. Measured from 1.5 to 8 MiB on two cores: smaller
// ones cost wake-ups, with larger ones less overlaps.
constexpr std::uint64_t kBatchBytes = (4 << 20) + (64 << 10);
// Half of a smaller batch that is cut in two all the same: worth a call of its own, whose words
// with the master pass while the other half moves. Smaller halves win on some machines, and lose
// more on others, where to wake a second core up takes 100 us.
constexpr std::uint64_t kHalfBatchBytes = 2 << 20;
// Of values that Mooncake alone reads: it copies one after the other, whatever the calls. On two
// cores calls beside each other cost more than they hide (measured from 4 to 128 MiB).
constexpr std::uint64_t kPassedBatchBytes = 65 << 20;

// Our own code for a value that was put with success and is not readable.
constexpr std::int64_t kNotReadable = -1'000'001;
// How long another writer of the same key is given to complete.
constexpr Duration kConfirmTime = std::chrono::milliseconds(200);
constexpr Duration kConfirmPause = std::chrono::milliseconds(1);

std::uint64_t room_of(std::uint64_t bytes) {
  return (bytes + StagingArena::kAlignment - 1) / StagingArena::kAlignment *
         StagingArena::kAlignment;
}

// Of a batch of `all` bytes, with the largest value of so many.
std::uint64_t worked_batch_bytes(std::uint64_t all, std::uint64_t largest) {
  if (all < 2 * kHalfBatchBytes) return all;
  // With one value more than a half, an odd number makes two batches as well.
  return std::min(kBatchBytes, (all + largest) / 2);
}

// Of a value of `bytes`; one that is shorter than the buffer lies there.
std::unexpected<Error> of_another_length(const GetItem& item, std::uint64_t bytes,
                                         const MooncakeBuffer& buffer) {
  const std::optional<std::uint64_t> payload_bytes = payload_bytes_of(bytes);
  bool whole = payload_bytes.has_value();
  if (whole && bytes < buffer.bytes) {
    ValueHeader header;
    std::memcpy(&header, buffer.data, sizeof header);
    whole = names(header, item.key, *payload_bytes);
  }
  if (whole) return other_length(item.key, *payload_bytes, total_bytes(item.payload));
  return fail(Code::kCorrupt, "mooncake value of " + item.key.to_string() + " is " +
                                  std::to_string(bytes) + " bytes long, not " +
                                  std::to_string(buffer.bytes));
}

// The wheel only reads, but asks for what it could write to.
MutableByteView writable(const ConstFragment& fragment) {
  return {const_cast<std::uint8_t*>(fragment.data()), fragment.size()};
}

// `is_joined`: the front ends where the payload's first fragment begins, in the same memory.
MooncakeValue pieces_of(const MooncakeBuffer& front, std::span<const ConstFragment> payload,
                        bool is_joined) {
  MooncakeValue pieces{front};
  if (is_joined) pieces.front().bytes += payload.front().size();
  for (const ConstFragment& fragment : payload.subspan(is_joined ? 1 : 0)) {
    const MutableByteView bytes = writable(fragment);
    pieces.push_back({bytes.data(), bytes.size()});
  }
  return pieces;
}

}  // namespace

std::vector<Positions> cut_batches(const Positions& positions, std::span<const ValueRoom> rooms,
                                   std::uint64_t staging_bytes) {
  std::uint64_t all = 0;
  std::uint64_t largest = 0;
  bool is_worked_on = false;
  for (const std::size_t position : positions) {
    all += room_of(rooms[position].bytes);
    largest = std::max(largest, room_of(rooms[position].bytes));
    is_worked_on |= rooms[position].is_worked_on;
  }
  const std::uint64_t bytes_max =
      is_worked_on ? worked_batch_bytes(all, largest) : kPassedBatchBytes;
  std::vector<Positions> batches;
  std::uint64_t bytes = 0;
  std::uint64_t staged = 0;
  for (const std::size_t position : positions) {
    const std::uint64_t room = room_of(rooms[position].bytes);
    const std::uint64_t staged_room = room_of(rooms[position].staged_bytes);
    if (batches.empty() || bytes + room > bytes_max || staged + staged_room > staging_bytes / 4 ||
        batches.back().size() == kBatchItems) {
      batches.emplace_back();
      bytes = 0;
      staged = 0;
    }
    batches.back().push_back(position);
    bytes += room;
    staged += staged_room;
  }
  return batches;
}

std::uint64_t Transfer::region_bytes(const Positions& positions, std::span<const ValueRoom> rooms) {
  std::uint64_t bytes = 0;
  for (const std::size_t position : positions) bytes += room_of(rooms[position].staged_bytes);
  return bytes;
}

Transfer::Transfer(Positions positions_of_items, std::span<const ValueRoom> rooms,
                   std::unique_ptr<StagingArena::Region> region)
    : positions(std::move(positions_of_items)),
      keys(positions.size()),
      region_(std::move(region)),
      codes_(positions.size()) {
  std::uint8_t* at = region_->data();
  for (const std::size_t position : positions) {
    staged_.push_back({at, rooms[position].staged_bytes});
    at += room_of(rooms[position].staged_bytes);
  }
}

void Transfer::stage(std::size_t index, const PutItem& item, bool is_sure) {
  keys.add(item.key);
  looks_.push_back(!item.sole_writer || !is_sure);
  ValueHeader header = item.header;
  const std::uint64_t offset = payload_offset(header.payload_bytes);
  auto* front = static_cast<std::uint8_t*>(staged_[index].data);
  std::uint64_t checksum = 0;
  const bool in_place = staged_[index].bytes < stored_bytes(header.payload_bytes);
  const bool has_room = is_sure && in_place && item.front_room >= offset;
  if (has_room) front = writable(item.payload.front()).data() - offset;
  if (in_place) {
    if (item.checksum) checksum = checksum_of(item.payload);
    values_.push_back(pieces_of({front, offset}, item.payload, has_room));
  } else {
    checksum = gather(item.payload, {front + offset, header.payload_bytes}, item.checksum);
    values_.push_back({staged_[index]});
  }
  if (item.checksum) set_checksum(header, checksum);
  std::memcpy(front, &header, sizeof header);
  if (!has_room) std::memset(front + sizeof header, 0, offset - sizeof header);
}

void Transfer::put(MooncakeClient& client, Clock& clock, Time deadline) {
  status_ = client.batch_put_from(keys.views(), values_, codes_);
  if (status_) confirm(client, clock, deadline);
  region_.reset();
  passes.clear();
}

void Transfer::confirm(MooncakeClient& client, Clock& clock, Time deadline) {
  const Time patience = std::min(deadline, clock.now() + kConfirmTime);
  Duration pause = kConfirmPause;
  while (true) {
    Positions unsure;
    std::vector<std::string_view> texts;
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      if (codes_[i] != 0 || !looks_[i]) continue;
      unsure.push_back(i);
      texts.push_back(keys.views()[i]);
    }
    if (unsure.empty()) return;
    std::vector<std::int64_t> readable(unsure.size());
    status_ = client.batch_is_exist(texts, readable);
    if (!status_) return;
    const Time now = clock.now();
    const bool last = now >= patience;
    for (std::size_t i = 0; i < unsure.size(); ++i) {
      if (readable[i] != 0) codes_[unsure[i]] = readable[i];
      if (readable[i] == 0 && last) codes_[unsure[i]] = kNotReadable;
    }
    if (last || std::ranges::count(readable, 0) == 0) return;
    clock.sleep_until(std::min(now + pause, patience));
    pause *= 2;
  }
}

void Transfer::get(MooncakeClient& client) {
  status_ = client.batch_get_into(keys.views(), staged_, codes_);
  for (std::size_t i = 0; status_ && i < codes_.size(); ++i) {
    if (codes_[i] != kMooncakeInvalidParams) continue;
    // Longer than its buffer, most likely: how long it is.
    const Result<std::int64_t> size = client.get_size(keys.views()[i]);
    const bool read = size && *size >= 0 && static_cast<std::uint64_t>(*size) <= staged_[i].bytes;
    if (size && !read) codes_[i] = *size;
  }
}

bool Transfer::may_be_half_put() const {
  return !status_ || std::ranges::any_of(codes_, [](std::int64_t code) {
    return code < 0 && code != kMooncakeFull && code != kNotReadable;
  });
}

Status Transfer::put_status(std::size_t index, const Key& key) const {
  if (!status_) return status_;
  const std::int64_t code = codes_[index];
  if (code >= 0) return {};
  if (code == kNotReadable) {
    return fail(Code::kBusy, "mooncake put of " + key.to_string() +
                                 ": answered as done, but nothing is to be read; somebody else "
                                 "is writing it or has left it half written");
  }
  return std::unexpected(mooncake_error("put of " + key.to_string(), code));
}

Result<GetValue> Transfer::take(std::size_t index, const GetItem& item) const {
  if (!status_) return std::unexpected(status_.error());
  const std::int64_t code = codes_[index];
  const MooncakeBuffer& value = staged_[index];
  if (code >= 0 && static_cast<std::uint64_t>(code) != value.bytes) {
    return of_another_length(item, static_cast<std::uint64_t>(code), value);
  }
  if (code < 0) return failed_get(mooncake_error("get of " + item.key.to_string(), code));
  GetValue got;
  const auto* const from = static_cast<const std::uint8_t*>(value.data);
  std::memcpy(&got.header, from, sizeof got.header);
  const std::uint64_t payload_bytes = total_bytes(item.payload);
  got.payload_checksum =
      scatter({from + payload_offset(payload_bytes), payload_bytes}, item.payload, item.checksum);
  return got;
}

}  // namespace newmoon
