#include "store/mooncake/mooncake_store.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "base/contain.h"
#include "base/log.h"
#include "store/mooncake/error_code.h"
#include "store/mooncake/lent_search.h"
#include "store/mooncake/lookup.h"
#include "store/mooncake/plugin_loader.h"
#include "store/mooncake/purger.h"
#include "store/mooncake/record_key.h"
#include "store/mooncake/value_form.h"
#include "store/put_check.h"

namespace newmoon {
namespace {

// Of one caller: one is copied while others are under way.
constexpr std::size_t kTransfersAtOnce = 3;
// Values of a transfer for which wake-ups count: up to a tenth is won if a worker is roused while
// they are prepared, and if who waits for the last call stays awake. With 64 on two cores that
// costs 3%: it takes a core from the wheel's own threads, which have a word about each value.
constexpr std::size_t kFewValues = 16;
constexpr Duration kAwake = std::chrono::milliseconds(1);
// That copy what is read where it lies. Memory gives little more to more of them.
constexpr std::size_t kReadersAtOnce = 4;
constexpr std::uint64_t kReaderBytesMin = 256 << 10;  // that are worth the wake-up of one
// A lookup's first stretch is small, since many lookups miss at once, unless the last one was a
// hit; the others are large, so that calls are few: a call costs as much as a hundred keys.
constexpr std::size_t kFirstLookupKeys = 64;
constexpr std::size_t kLookupKeysMax = 8192;

std::uint64_t payload_bytes(const Positions& positions, std::span<const GetItem> items) {
  std::uint64_t bytes = 0;
  for (const std::size_t position : positions) bytes += total_bytes(items[position].payload);
  return bytes;
}

Status to_status(const char* what, const Result<std::int64_t>& code) {
  if (!code) return std::unexpected(code.error());
  if (*code < 0) return std::unexpected(mooncake_error(what, *code));
  return {};
}

// For the purger. A pass by pattern over so few keys takes the master 6 ms.
constexpr std::uint64_t kFewKeys = 4096;
constexpr Duration kFiguresTimeout = std::chrono::seconds(1);
constexpr Duration kListTimeout = std::chrono::seconds(30);

ListManyKeys lister_of(const MasterHttp& http, Clock& clock) {
  return [http, &clock](const WantedKey& wanted) -> std::optional<std::vector<std::string>> {
    const auto figures = http.figures(clock.now() + kFiguresTimeout);
    if (!figures || figures->keys <= kFewKeys) return std::nullopt;
    auto keys = http.keys(clock.now() + kListTimeout, wanted);
    if (!keys) return std::nullopt;
    return std::move(*keys);
  };
}

// One store of a process joins at a time, so that none takes for its own what the client of another
// maps meanwhile. Never destroyed: a setup that hangs may end with the process.
struct Turn {
  Mutex mutex;
  CondVar changed;
  bool is_taken NM_GUARDED_BY(mutex) = false;
};

void give_turn_back(Turn* turn) {
  const MutexLock lock(turn->mutex);
  turn->is_taken = false;
  turn->changed.notify_one();
}

// nullptr: another has it until the deadline.
std::shared_ptr<void> take_turn_to_join(Clock& clock, Time deadline) {
  static Turn& turn = *new Turn;
  const MutexLock lock(turn.mutex);
  while (turn.is_taken) {
    const Duration left = deadline - clock.now();
    if (left <= Duration::zero()) return nullptr;
    turn.changed.wait_for(turn.mutex, left);
  }
  turn.is_taken = true;
  return std::shared_ptr<void>(&turn, [](void*) { give_turn_back(&turn); });
}

struct Joined {
  std::shared_ptr<MooncakeClient> client;
  AddressRanges lent;
};

// Which protocols a build of the wheel has, its setup alone knows, and says it with one code.
Status set_up_client(MooncakeClient& client, const MooncakeConfig& config) {
  Status set_up = to_status("setup", client.setup(config));
  if (set_up || config.protocol == "tcp") return set_up;
  return fail(set_up.error().code, set_up.error().message + "; it was asked for protocol '" +
                                       config.protocol + "', which may not be to be had here");
}

// REQUIRES: the turn to join.
Result<Joined> set_up(const MooncakeStore::MakeClient& make_client, const MooncakeConfig& config,
                      StagingArena& arena) {
  Result<std::unique_ptr<MooncakeClient>> client = make_client();
  if (!client) return std::unexpected(client.error());
  Joined joined{std::move(*client), {}};
  const bool lends = config.global_segment_bytes > 0;
  const AddressRanges before = lends ? writable_memory() : AddressRanges();
  if (Status done = set_up_client(*joined.client, config); !done) {
    return std::unexpected(done.error());
  }
  if (lends) joined.lent = added_memory(before, writable_memory(), config.global_segment_bytes);
  Status taken =
      to_status("register_buffer", joined.client->register_buffer({arena.data(), arena.bytes()}));
  if (!taken) return std::unexpected(taken.error());
  return joined;
}

}  // namespace

bool MooncakeStore::Session::holds(std::span<const ConstFragment> payload) {
  MutexLock lock(mutex);
  return std::ranges::all_of(payload, [this](const ConstFragment& fragment) NM_REQUIRES(mutex) {
    return std::ranges::any_of(registered, [&](const ByteView& memory) {
      return fragment.data() >= memory.data() &&
             fragment.data() + fragment.size() <= memory.data() + memory.size();
    });
  });
}

// A caller's transfers, which it sees to the end in their order or gives up.
class MooncakeStore::Transfers {
 public:
  // `finished`: of each, whether it was done in time.
  using Finished = std::function<void(Transfer&, bool done)>;
  Transfers(Time deadline, Finished finished)
      : deadline_(deadline), finished_(std::move(finished)) {}

  void add(std::shared_ptr<Transfer> transfer, std::shared_ptr<CallPool::Call> call) {
    under_way_.push_back({std::move(transfer), std::move(call)});
  }
  bool empty() const { return under_way_.empty(); }
  std::size_t size() const { return under_way_.size(); }
  void finish_first(Duration awake = Duration::zero()) {
    const UnderWay first = std::move(under_way_.front());
    under_way_.pop_front();
    const bool done = first.call->wait(deadline_, awake);
    finished_(*first.transfer, done);
  }
  void finish() {
    while (!empty()) {
      const bool is_few = under_way_.front().transfer->positions.size() <= kFewValues;
      finish_first(size() == 1 && is_few ? kAwake : Duration::zero());
    }
  }

 private:
  struct UnderWay {
    std::shared_ptr<Transfer> transfer;
    std::shared_ptr<CallPool::Call> call;
  };
  const Time deadline_;
  const Finished finished_;
  std::deque<UnderWay> under_way_;
};

// --- life ------------------------------------------------------------------------

Result<std::unique_ptr<MooncakeStore>> MooncakeStore::open(const MooncakeConfig& config,
                                                           Clock& clock,
                                                           const MooncakeOptions& options) {
  // Asked first, since the wheel takes 4.4 s to say it and its one code has many causes.
  const Time deadline = clock.now() + options.start_timeout;
  const Status there = probe_tcp(config.master_server_address, clock, deadline);
  if (!there) {
    return fail(Code::kUnavailable, "mooncake: no master: " + there.error().message +
                                        "; start one (./dev mooncake) or correct the address");
  }
  Result<std::unique_ptr<MooncakeStore>> store =
      open_with(load_mooncake_client, config, clock, options);
  if (store) {
    (*store)->probe_ = [address = config.master_server_address, &clock](Time by) {
      return probe_tcp(address, clock, by);
    };
  }
  return store;
}

Result<std::unique_ptr<MooncakeStore>> MooncakeStore::open_with(const MakeClient& make_client,
                                                                const MooncakeConfig& config,
                                                                Clock& clock,
                                                                const MooncakeOptions& options) {
  std::unique_ptr<MooncakeStore> store(new MooncakeStore(config, clock, options));
  if (Status joined = store->join(make_client, config); !joined) {
    return std::unexpected(joined.error());
  }
  return store;
}

MooncakeStore::MooncakeStore(const MooncakeConfig& config, Clock& clock,
                             const MooncakeOptions& options)
    : clock_(clock),
      options_(options),
      master_(config.master_server_address),
      staging_bytes_(std::min(config.local_buffer_bytes, options.staging_bytes_max)),
      http_(config.metrics_address(), clock),
      gate_(std::make_shared<ScopeGate>(
          ScopeGate::Options{.recheck_delays = options.recheck_delays}, clock)),
      purger_(1, "moon-store", clock),
      calls_(options.workers, "moon-call", clock) {}

Status MooncakeStore::join(const MakeClient& make_client, const MooncakeConfig& config) {
  const Time deadline = clock_.now() + options_.start_timeout;
  Result<std::shared_ptr<StagingArena>> arena = StagingArena::make(staging_bytes_, clock_);
  if (!arena) return std::unexpected(arena.error());
  const std::shared_ptr<void> turn = take_turn_to_join(clock_, deadline);
  if (turn == nullptr) {
    return fail(Code::kDeadline,
                "mooncake setup: another store of this process is joining and "
                "has not come to an end in time");
  }
  MooncakeConfig for_wheel = config;
  for_wheel.local_buffer_bytes = 0;
  const auto joined = std::make_shared<Result<Joined>>();
  // Not on a thread that puts: what the wheel keeps from its setup lies all over that thread's
  // malloc arena, and puts of 64 values from there take 1 to 5% longer.
  const auto call = purger_.start([joined, turn, make_client, for_wheel, arena = *arena] {
    *joined = contain([&] { return set_up(make_client, for_wheel, *arena); });
  });
  if (!call->wait(deadline)) return overdue("setup");
  if (!*joined) return std::unexpected(joined->error());
  session_ = std::make_shared<Session>(std::move((*joined)->client), std::move(*arena),
                                       std::move((*joined)->lent));
  purger_.start([client = session_->client, gate = gate_, http = http_, &clock = clock_] {
    run_purges(*client, *gate, lister_of(http, clock), clock);
  });
  return {};
}

MooncakeStore::~MooncakeStore() {
  if (session_ == nullptr) return;
  const bool answers = ping().has_value();
  const Time deadline = clock_.now() + (answers ? options_.stop_timeout : Duration::zero());
  gate_->stop();
  if (purger_.stop(deadline) && calls_.stop(deadline) && answers) {
    CallPool leaving(1, "moon-leave", clock_);
    const auto call = leaving.start([session = session_] { (void)session->client->close(); });
    if (call->wait(deadline)) return;
  }
  log(LogLevel::kWarning, "mooncake",
      "left " + master_ + " without a farewell: it does not answer; what this process lent is " +
          "missed by the others until the master notices");
  // To end the client of a dead master takes the wheel many seconds, in which it keeps
  // everyone out of the interpreter. It is left to the end of the process.
  static Mutex left_mutex;
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): a process that ends without memory
  static auto* const left = new std::vector<std::shared_ptr<Session>>;
  const MutexLock lock(left_mutex);
  left->push_back(std::move(session_));
}

std::unexpected<Error> MooncakeStore::overdue(const char* what) const {
  return fail(Code::kDeadline,
              std::string("mooncake ") + what + ": no answer in time from the store at " + master_);
}

Result<std::int64_t> MooncakeStore::call(const char* what, Time deadline,
                                         std::function<Result<std::int64_t>(Session&)> work) {
  auto result = std::make_shared<Result<std::int64_t>>(0);
  const auto call = calls_.start(
      [result, session = session_, work = std::move(work)] { *result = work(*session); });
  if (!call->wait(deadline)) return overdue(what);
  if (*result && **result < 0) return std::unexpected(mooncake_error(what, **result));
  return *result;
}

// No call of the wheel tells now and cheaply: its health check says what it knew up to a
// second ago, and the others hold a worker for 4.5 s if the master is dead.
Status MooncakeStore::ping() {
  const Time deadline = this->deadline();
  if (Status listens = probe_(deadline); !listens) return listens;
  const Result<std::int64_t> code =
      call("health check", deadline, [](Session& s) { return s.client->health_check(); });
  if (!code) return std::unexpected(code.error());
  if (*code != 0) {
    return fail(Code::kUnavailable, "mooncake: the master at " + master_ + " does not answer");
  }
  // One that hangs still accepts connections. Its HTTP may be closed to us, which says nothing.
  const Result<std::string> alive = http_.get("/health", deadline);
  if (!alive && alive.error().code == Code::kDeadline) return std::unexpected(alive.error());
  return {};
}

// --- values ----------------------------------------------------------------------

void MooncakeStore::register_memory(std::shared_ptr<const void> owner, ByteView memory) {
  const MooncakeBuffer buffer{const_cast<std::uint8_t*>(memory.data()), memory.size()};
  const auto taken = call("register_buffer", deadline(), [buffer](Session& session) {
    return session.client->register_buffer(buffer);
  });
  MutexLock lock(session_->mutex);
  // Kept even if it was not taken, since the call may go on.
  session_->owners.push_back(std::move(owner));
  if (taken) {
    session_->registered.push_back(memory);
  } else {
    log(LogLevel::kDebug, "mooncake", "payloads will be copied: " + taken.error().message);
  }
}

std::size_t MooncakeStore::front_room_for(std::uint64_t payload_bytes) const {
  return payload_offset(payload_bytes);
}

// What changes under a late call must not pass for whole, so that only what has a checksum
// is read in place.
ValueRoom MooncakeStore::room_of(const PutItem& item) const {
  const std::uint64_t bytes = stored_bytes(item.header.payload_bytes);
  const bool checksummed = item.checksum || (item.header.flags & ValueHeader::kChecksummed) != 0;
  const bool in_place = checksummed && !item.payload.empty() && session_->holds(item.payload);
  if (!in_place) return {bytes, bytes, true};
  return {bytes, payload_offset(item.header.payload_bytes), item.checksum};
}

Positions MooncakeStore::admit(std::span<const PutItem> items, std::vector<ValueRoom>& rooms,
                               std::vector<Status>& statuses) {
  Positions positions;
  for (std::size_t i = 0; i < items.size(); ++i) {
    rooms[i] = room_of(items[i]);
    statuses[i] = check_put(items[i]);
    if (statuses[i] && rooms[i].staged_bytes > staging_bytes_) {
      statuses[i] =
          fail(Code::kBadRequest,
               "put of " + items[i].key.to_string() + ": " + std::to_string(rooms[i].staged_bytes) +
                   " bytes are more than the staging memory's " + std::to_string(staging_bytes_));
    }
    if (statuses[i]) positions.push_back(i);
  }
  return positions;
}

// A transfer of those items whose scopes take puts; nullptr: none does.
Result<std::shared_ptr<Transfer>> MooncakeStore::stage(Positions positions,
                                                       std::span<const PutItem> items,
                                                       std::span<const ValueRoom> rooms,
                                                       std::vector<Status>& statuses,
                                                       Time deadline) {
  std::map<ScopeId, Status> scopes;
  std::vector<std::unique_ptr<ScopeGate::Put>> passes;
  std::erase_if(positions, [&](std::size_t position) {
    const ScopeId& scope = items[position].key.scope;
    auto found = scopes.find(scope);
    if (found == scopes.end()) {
      auto pass = gate_->begin_put(scope, deadline);
      found = scopes.emplace(scope, Status()).first;
      if (pass) {
        passes.push_back(std::move(*pass));
      } else {
        found->second = std::unexpected(pass.error());
      }
    }
    statuses[position] = found->second;
    if (found->second) return false;
    if (found->second.error().code == Code::kFenced) ++refused_late_puts_;
    return true;
  });
  if (positions.empty()) return nullptr;
  auto region = session_->arena->take(Transfer::region_bytes(positions, rooms), deadline);
  if (!region) {
    for (const std::size_t position : positions)
      statuses[position] = std::unexpected(region.error());
    return std::unexpected(region.error());
  }
  auto transfer = std::make_shared<Transfer>(std::move(positions), rooms, std::move(*region));
  transfer->passes = std::move(passes);
  for (std::size_t i = 0; i < transfer->positions.size(); ++i) {
    transfer->stage(i, items[transfer->positions[i]], !had_failed_put_);
  }
  return transfer;
}

std::vector<Status> MooncakeStore::put(std::span<const PutItem> items) try {
  const Time deadline = this->deadline();
  std::vector<Status> statuses(items.size());
  std::vector<ValueRoom> rooms(items.size());
  Transfers under_way(deadline, [&](Transfer& transfer, bool done) {
    if (!done || transfer.may_be_half_put()) had_failed_put_ = true;
    for (std::size_t i = 0; i < transfer.positions.size(); ++i) {
      const std::size_t position = transfer.positions[i];
      statuses[position] =
          done ? transfer.put_status(i, items[position].key) : Status(overdue("put"));
    }
  });
  if (items.size() <= kFewValues) calls_.rouse();
  for (Positions& positions : cut_batches(admit(items, rooms, statuses), rooms, staging_bytes_)) {
    if (under_way.size() == kTransfersAtOnce) under_way.finish_first();
    auto staged = stage(std::move(positions), items, rooms, statuses, deadline);
    if (!staged || *staged == nullptr) continue;
    auto call = calls_.start([transfer = *staged, session = session_, &clock = clock_, deadline] {
      transfer->put(*session->client, clock, deadline);
    });
    under_way.add(std::move(*staged), std::move(call));
  }
  under_way.finish();
  return statuses;
} catch (...) {
  had_failed_put_ = true;  // calls that it had begun go on
  throw;
}

std::vector<Result<GetValue>> MooncakeStore::get(std::span<const GetItem> items) {
  const Time deadline = this->deadline();
  std::vector<Result<GetValue>> values(items.size());
  Positions wanted;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (gate_->is_hidden(items[i].key.scope)) {
      values[i] = fail(Code::kMiss, "scope " + items[i].key.scope.hex() + " was purged");
    } else {
      wanted.push_back(i);
    }
  }
  fetch(read_lent(std::move(wanted), items, values, deadline), items, values, deadline);
  return values;
}

// What of `wanted` lies in memory of this process; returns the others.
Positions MooncakeStore::read_lent(Positions wanted, std::span<const GetItem> items,
                                   std::span<Result<GetValue>> values, Time deadline) {
  if (session_->lent.empty() || wanted.empty()) return wanted;
  const auto search = std::make_shared<LentSearch>(wanted.size(), session_->lent);
  for (const std::size_t position : wanted) search->keys.add(items[position].key);
  const auto call =
      calls_.start([search, session = session_] { search->locate(*session->client); });
  // What is late here is late once more, and is told, when it is fetched.
  if (!call->wait(deadline)) return wanted;
  std::vector<char> found(wanted.size());
  std::atomic<std::size_t> next = 0;
  share_out(payload_bytes(wanted, items), [&] {
    for (std::size_t i = next++; i < wanted.size(); i = next++) {
      const std::size_t position = wanted[i];
      const auto value = search->read(i, items[position]);
      if (!value) continue;
      values[position] = *value;
      found[i] = true;
    }
  });
  Positions others;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!found[i]) others.push_back(wanted[i]);
  }
  return others;
}

// Runs `work` here and on workers that are free, until all have returned. It must not block.
void MooncakeStore::share_out(std::uint64_t bytes, const std::function<void()>& work) {
  struct Helpers {
    ~Helpers() {
      for (const auto& call : calls) call->cancel();  // whatever happens: `work` is the caller's
    }
    std::vector<std::shared_ptr<CallPool::Call>> calls;
  };
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t readers = std::min({kReadersAtOnce, cores, 1 + bytes / kReaderBytesMin});
  Helpers helpers;
  helpers.calls.reserve(readers);
  for (std::size_t i = 1; i < readers; ++i) helpers.calls.push_back(calls_.start(work));
  work();
}

// Through staging memory, so that a late call of the wheel writes into nobody's memory.
void MooncakeStore::fetch(const Positions& wanted, std::span<const GetItem> items,
                          std::span<Result<GetValue>> values, Time deadline) {
  std::vector<ValueRoom> rooms(items.size());
  for (const std::size_t position : wanted) {
    const std::uint64_t bytes = stored_bytes(total_bytes(items[position].payload));
    rooms[position] = {bytes, bytes, true};
  }
  Transfers under_way(deadline, [&](Transfer& transfer, bool done) {
    for (std::size_t i = 0; i < transfer.positions.size(); ++i) {
      const std::size_t position = transfer.positions[i];
      values[position] = done ? transfer.take(i, items[position]) : overdue("get");
    }
  });
  for (Positions& positions : cut_batches(wanted, rooms, staging_bytes_)) {
    if (under_way.size() == kTransfersAtOnce) under_way.finish_first();
    const std::uint64_t bytes = Transfer::region_bytes(positions, rooms);
    auto region = session_->arena->take(bytes, under_way.empty() ? deadline : clock_.now());
    // Whoever waits for room holds none, or all might wait for each other.
    while (!region && !under_way.empty()) {
      under_way.finish_first();
      region = session_->arena->take(bytes, under_way.empty() ? deadline : clock_.now());
    }
    if (!region) {
      for (const std::size_t position : positions)
        values[position] = std::unexpected(region.error());
      continue;
    }
    auto transfer = std::make_shared<Transfer>(std::move(positions), rooms, std::move(*region));
    for (const std::size_t position : transfer->positions) transfer->keys.add(items[position].key);
    auto call = calls_.start([transfer, session = session_] { transfer->get(*session->client); });
    under_way.add(std::move(transfer), std::move(call));
  }
  under_way.finish();
}

Result<std::size_t> MooncakeStore::hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                              std::span<const BlockHash> blocks) {
  if (shards.empty() || blocks.empty() || gate_->is_hidden(scope)) return 0;
  const Time deadline = this->deadline();
  std::size_t prepared = 0;  // blocks
  const auto prepare = [&](std::size_t keys_max) -> std::shared_ptr<Lookup> {
    const auto left = blocks.subspan(prepared);
    if (left.empty()) return nullptr;
    const auto count = std::clamp<std::size_t>(keys_max / shards.size(), 1, left.size());
    prepared += count;
    return std::make_shared<Lookup>(scope, shards, left.first(count));
  };
  const bool is_long = blocks.size() * shards.size() > Lookup::kOneCallKeysMax;
  const bool is_careful = is_long && !last_lookup_hit_;
  std::size_t seen = 0;
  auto lookup = prepare(is_careful ? kFirstLookupKeys : kLookupKeysMax);
  while (lookup != nullptr) {
    const Calls calls = start(lookup);
    // While it is under way; not if it may well be the last.
    auto next = is_careful && seen == 0 ? nullptr : prepare(kLookupKeysMax);
    const Result<std::size_t> hits = finish(*lookup, calls, deadline);
    if (!hits) return hits;
    seen += *hits;
    if (is_long) last_lookup_hit_ = seen * shards.size() >= kFirstLookupKeys;
    if (*hits < lookup->blocks()) break;
    lookup = next != nullptr ? std::move(next) : prepare(kLookupKeysMax);
  }
  return seen;
}

MooncakeStore::Calls MooncakeStore::start(const std::shared_ptr<Lookup>& lookup) {
  Calls calls;
  for (std::size_t i = 0; i < lookup->calls(); ++i) {
    calls.push_back(
        calls_.start([lookup, i, session = session_] { lookup->ask(*session->client, i); }));
  }
  return calls;
}

Result<std::size_t> MooncakeStore::finish(const Lookup& lookup, const Calls& calls, Time deadline) {
  bool in_time = true;
  // The others are asked, too: what has not begun by then never will.
  for (const auto& call : calls) in_time = call->wait(deadline) && in_time;
  if (!in_time) return overdue("lookup");
  return lookup.hits();
}

}  // namespace newmoon
