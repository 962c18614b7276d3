#include "cli/bench_mooncake.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "cli/bench_fill.h"
#include "cli/bench_reset.h"
#include "cli/statistics.h"
#include "store/mooncake/config.h"
#include "store/mooncake/key_texts.h"

namespace newmoon {
namespace {

constexpr std::uint64_t kLentBytes = std::uint64_t{2} << 30;
constexpr std::uint64_t kBufferBytes = std::uint64_t{512} << 20;
// What a side moves a run, each value from and to memory of its own: blocks of a KV cache lie
// in far more memory than a processor's caches hold.
constexpr std::size_t kRunBytes = std::size_t{128} << 20;
// Of the variants, which have no target.
constexpr int kRunsPerVariantRun = 5;
constexpr int kLookupSamples = 100;
constexpr int kResets = 200;
// Nothing is to fail by its deadline while it is measured.
constexpr Duration kPatience = std::chrono::seconds(60);

ScopeId numbered_scope(std::uint8_t number) {
  ScopeId scope;
  scope.bytes.fill(number);
  return scope;
}

Status check_codes(const char* what, const Status& status, std::span<const std::int64_t> codes) {
  if (!status) return status;
  for (const std::int64_t code : codes) {
    if (code < 0) return fail(Code::kInternal, std::string(what) + ": " + std::to_string(code));
  }
  return {};
}

// Who moves the same bytes, in memory that both know (KvStore::register_memory).
enum class Side : std::uint8_t {
  kOurs,        // keys of ours alone, as under identity unique; with the checksums that
                // staging has computed and room in front, as saves from vLLM come
  kOursShared,  // the same, but keys that others may be writing
  kWheel,
  kOursHashed,  // keys of ours, the checksums computed by the put
  kOursCopied,  // the same from memory that the store does not know, as saves of llama.cpp come
};
constexpr std::array kRivals = {Side::kOurs, Side::kWheel};
// Apart from the rivals: values that come and go between theirs would take their places in the
// segment, so that one of them went through more memory than the other.
constexpr std::array kVariants = {Side::kOursShared, Side::kOursHashed, Side::kOursCopied,
                                  Side::kWheel};

struct Memory {
  MutableByteView known;
  MutableByteView unknown;
};

// One size and batch.
class TransferBench {
 public:
  TransferBench(MooncakeStore& store, MooncakeClient& client, SystemClock& clock,
                const Memory& memory, std::size_t value_bytes, std::size_t batch, int runs)
      : store_(store),
        client_(client),
        clock_(clock),
        memory_(memory),
        bytes_(value_bytes),
        batch_(batch),
        runs_(runs),
        calls_(std::max<std::size_t>(1, kRunBytes / (value_bytes * batch))),
        room_(store.front_room_for(value_bytes)) {
    for (std::size_t i = 0; i < calls_ * batch_; ++i) {
      const ConstFragment payload = value(i);
      checksums_.push_back(checksum_of({&payload, 1}));
    }
  }

  Result<std::vector<MooncakeTransferRow>> run() {
    Speeds puts;
    Speeds gets;
    Speeds variants;
    for (int run = -1; run < runs_; ++run) {
      if (run == 0) {  // the first one touches the store's memory
        for (Speeds* speeds : {&puts, &gets, &variants}) speeds->clear();
      }
      if (Status done = run_rivals(puts, gets); !done) return std::unexpected(done.error());
      if (run > 0 && run % kRunsPerVariantRun != 0) continue;
      if (Status done = run_variants(variants); !done) return std::unexpected(done.error());
    }
    return std::vector{
        row("put", Side::kOurs, puts), row("put_shared", Side::kOursShared, variants),
        row("put_hashed", Side::kOursHashed, variants),
        row("put_copied", Side::kOursCopied, variants), row("get", Side::kOurs, gets)};
  }

 private:
  using Speeds = std::map<Side, std::vector<double>>;  // GB/s, of each run

  // The ratio is the median of the runs' own, since the machine's speed drifts.
  MooncakeTransferRow row(std::string op, Side side, const Speeds& speeds) const {
    const std::vector<double>& ours = speeds.at(side);
    const std::vector<double>& wheels = speeds.at(Side::kWheel);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / wheels[i]);
    return {bytes_, batch_, std::move(op), median(ours), median(wheels), median(ratios)};
  }

  Status run_rivals(Speeds& puts, Speeds& gets) {
    if (Status put = time(puts, kRivals, &TransferBench::put); !put) return put;
    if (Status got = time(gets, kRivals, &TransferBench::get); !got) return got;
    return remove(kRivals);
  }
  Status run_variants(Speeds& puts) {
    if (Status put = time(puts, kVariants, &TransferBench::put); !put) return put;
    return remove(kVariants);
  }

  // Adds each side's GB/s. They take turns call by call, since the machine's speed drifts, and
  // in any order, since what one does shows in the next one's time.
  Status time(Speeds& speeds, std::span<const Side> sides,
              Status (TransferBench::*transfer)(Side, std::size_t)) {
    std::vector<Side> order(sides.begin(), sides.end());
    std::map<Side, Duration> taken;
    for (std::size_t call = 0; call < calls_; ++call) {
      std::ranges::shuffle(order, random_);
      for (const Side side : order) {
        const Time start = clock_.now();
        if (const Status done = (this->*transfer)(side, call); !done) return done;
        taken[side] += clock_.now() - start;
      }
    }
    const auto bytes = static_cast<double>(calls_ * batch_ * bytes_);
    for (const auto& [side, time] : taken) {
      speeds[side].push_back(bytes / static_cast<double>(time.count()));
    }
    return {};
  }

  // Of the memory: the sides go through it far from each other, the rivals half of it, so that
  // nobody finds in the caches what another has just used. One has memory of its own.
  std::size_t slot(Side side, std::size_t call, std::size_t i) const {
    const std::size_t ahead = static_cast<std::size_t>(side) * calls_ / 4;
    return (call + ahead) % calls_ * batch_ + i;
  }
  MutableByteView value(std::size_t i, bool known = true) const {
    if (!known) return {memory_.unknown.data() + i * bytes_, bytes_};
    return {memory_.known.data() + i * (room_ + bytes_) + room_, bytes_};
  }
  Key key(Side side, std::size_t call, std::size_t i) const {
    return {numbered_scope(static_cast<std::uint8_t>(side)), {}, numbered_hash(call * batch_ + i)};
  }
  KeyTexts texts(Side side, std::size_t call) const {
    KeyTexts texts(batch_);
    for (std::size_t i = 0; i < batch_; ++i) texts.add(key(side, call, i));
    return texts;
  }

  Status put(Side side, std::size_t call) {
    if (side == Side::kWheel) return wheel(&MooncakeClient::batch_put_from, "put", call);
    std::vector<ConstFragment> payloads;
    std::vector<PutItem> items;
    for (std::size_t i = 0; i < batch_; ++i) {
      payloads.emplace_back(value(slot(side, call, i), side != Side::kOursCopied));
    }
    const bool known = side == Side::kOurs || side == Side::kOursShared;
    for (std::size_t i = 0; i < batch_; ++i) {
      const Key key = this->key(side, call, i);
      ValueHeader header = make_header(key, {}, bytes_);
      if (known) set_checksum(header, checksums_[slot(side, call, i)]);
      items.push_back({key, header, std::span(&payloads[i], 1), /*checksum=*/!known,
                       /*sole_writer=*/side != Side::kOursShared,
                       side == Side::kOursCopied ? 0 : room_});
    }
    for (const Status& status : store_.put(items)) {
      if (!status) return status;
    }
    return {};
  }

  Status get(Side side, std::size_t call) {
    if (side == Side::kWheel) return wheel(&MooncakeClient::batch_get_into, "get", call);
    std::vector<Fragment> payloads;
    std::vector<GetItem> items;
    for (std::size_t i = 0; i < batch_; ++i) payloads.emplace_back(value(slot(side, call, i)));
    for (std::size_t i = 0; i < batch_; ++i) {
      items.push_back({key(side, call, i), std::span(&payloads[i], 1)});
    }
    for (const Result<GetValue>& got : store_.get(items)) {
      if (!got) return std::unexpected(got.error());
      if (got->payload_checksum != got->header.checksum) {
        return fail(Code::kInternal, "get: wrong bytes");
      }
    }
    return {};
  }

  template <class Value>
  Status wheel(Status (MooncakeClient::*method)(std::span<const std::string_view>,
                                                std::span<const Value>, std::span<std::int64_t>),
               const char* what, std::size_t call) {
    const KeyTexts keys = texts(Side::kWheel, call);
    std::vector<Value> values;
    for (std::size_t i = 0; i < batch_; ++i) {
      const MooncakeBuffer buffer{value(slot(Side::kWheel, call, i)).data(), bytes_};
      values.push_back(Value{buffer});
    }
    std::vector<std::int64_t> codes(batch_);
    const Status done = (client_.*method)(keys.views(), values, codes);
    return check_codes(what, done, codes);
  }

  Status remove(std::span<const Side> sides) {
    for (const Side side : sides) {
      for (std::size_t call = 0; call < calls_; ++call) {
        const KeyTexts keys = texts(side, call);
        std::vector<std::int64_t> codes(batch_);
        const Status done = client_.batch_remove(keys.views(), codes);
        if (Status removed = check_codes("remove", done, codes); !removed) return removed;
      }
    }
    return {};
  }

  MooncakeStore& store_;
  MooncakeClient& client_;
  SystemClock& clock_;
  const Memory& memory_;
  const std::size_t bytes_;
  const std::size_t batch_;
  const int runs_;
  const std::size_t calls_;
  const std::size_t room_;  // in front of a value in memory that the store knows
  std::mt19937 random_{1};
  std::vector<std::uint64_t> checksums_;
};

template <class Work>
Result<double> time_us(Clock& clock, const Work& work) {
  const Time start = clock.now();
  const Status done = work();
  if (!done) return std::unexpected(done.error());
  return to_us(clock.now() - start);
}

}  // namespace

Result<std::unique_ptr<MooncakeBench>> MooncakeBench::open(const std::string& url) {
  std::unique_ptr<MooncakeBench> bench(new MooncakeBench());
  Result<StoreAddress> found = find_store(url, "", bench->clock_);
  if (!found) return std::unexpected(found.error());
  bench->address_ = std::move(*found);
  Result<MooncakeConfig> config = load_mooncake_config(bench->address_.url);
  if (!config) return std::unexpected(config.error());
  config->global_segment_bytes = kLentBytes;
  config->local_buffer_bytes = kBufferBytes;
  auto store = MooncakeStore::open(*config, bench->clock_, {.timeout = kPatience});
  if (!store) return std::unexpected(store.error());
  bench->store_ = std::move(*store);
  return bench;
}

Result<std::vector<MooncakeTransferRow>> MooncakeBench::transfers(
    std::span<const std::size_t> value_bytes, std::span<const std::size_t> batches, int runs) {
  const std::size_t bytes =
      std::max(kRunBytes, std::ranges::max(value_bytes) * std::ranges::max(batches));
  const auto known = std::make_shared<Bytes>(bytes + bytes / 16);
  store_->register_memory(known, *known);
  Bytes unknown(bytes, 1);
  const Memory memory{*known, unknown};
  std::vector<MooncakeTransferRow> rows;
  for (const std::size_t bytes : value_bytes) {
    for (const std::size_t batch : batches) {
      const auto both =
          TransferBench(*store_, store_->client(), clock_, memory, bytes, batch, runs).run();
      if (!both) return std::unexpected(both.error());
      rows.insert(rows.end(), both->begin(), both->end());
    }
  }
  return rows;
}

Result<MooncakeLookupRow> MooncakeBench::lookup(std::string case_name,
                                                std::span<const BlockHash> blocks,
                                                std::size_t expected_hits) {
  KeyTexts keys(blocks.size());
  for (const BlockHash& block : blocks) keys.add(ScopeId(), Shard(), block);
  std::vector<std::int64_t> codes(blocks.size());
  const Shard shard;
  std::vector<double> ours;
  std::vector<double> bare;
  for (int i = 0; i < kLookupSamples; ++i) {
    const Result<double> seen = time_us(clock_, [&]() -> Status {
      const Result<std::size_t> hits = store_->hit_prefix({}, std::span(&shard, 1), blocks);
      if (!hits) return std::unexpected(hits.error());
      if (*hits != expected_hits) return fail(Code::kInternal, "a lookup was answered wrongly");
      return {};
    });
    if (!seen) return std::unexpected(seen.error());
    const Result<double> limit = time_us(clock_, [&] {
      return check_codes("lookup", store_->client().batch_is_exist(keys.views(), codes), codes);
    });
    if (!limit) return std::unexpected(limit.error());
    ours.push_back(*seen);
    bare.push_back(*limit);
  }
  const double us = median(ours);
  const double bare_us = median(bare);
  return MooncakeLookupRow{static_cast<int>(blocks.size()), std::move(case_name), us, bare_us,
                           us / bare_us};
}

// After round_trips(), which leaves the blocks in the store.
Result<std::vector<MooncakeLookupRow>> MooncakeBench::lookups(std::span<const int> blocks) {
  const int most = std::ranges::max(blocks);
  const std::vector<BlockHash> present = random_hashes(1, most);
  const std::vector<BlockHash> absent = random_hashes(2, most);
  std::vector<MooncakeLookupRow> rows;
  for (const int count : blocks) {
    const auto size = static_cast<std::size_t>(count);
    for (auto row : {lookup("all_hits", std::span(present).first(size), size),
                     lookup("all_misses", std::span(absent).first(size), 0)}) {
      if (!row) return std::unexpected(row.error());
      rows.push_back(std::move(*row));
    }
  }
  return rows;
}

Result<double> MooncakeBench::time_remove_all(std::uint64_t keys) {
  // Resets have left purges behind; what they remove is not to be counted here.
  const Result<std::uint64_t> emptied = store_->remove_all();
  if (!emptied) return std::unexpected(emptied.error());
  const Status filled = fill_scope(*store_, numbered_scope(3), keys);
  if (!filled) return std::unexpected(filled.error());
  return time_us(clock_, [this, keys]() -> Status {
    const Result<std::int64_t> removed = store_->client().remove_all();
    if (!removed) return std::unexpected(removed.error());
    if (*removed >= static_cast<std::int64_t>(keys)) return {};
    return fail(Code::kInternal, "remove_all: " + std::to_string(*removed));
  });
}

Result<std::vector<MooncakeResetRow>> MooncakeBench::resets(std::span<const std::uint64_t> keys) {
  std::vector<MooncakeResetRow> rows;
  for (const std::uint64_t count : keys) {
    const Result<std::vector<double>> acks = time_resets(*store_, count, kResets);
    if (!acks) return std::unexpected(acks.error());
    const Result<double> remove_all_us = time_remove_all(count);
    if (!remove_all_us) return std::unexpected(remove_all_us.error());
    rows.push_back({count, median(*acks), acks->front(), *remove_all_us});
  }
  return rows;
}

}  // namespace newmoon
