#include "store/faulty_store.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace newmoon {
namespace {

using Op = FaultRule::Op;
using When = FaultRule::When;

constexpr Duration kHoldPoll = std::chrono::milliseconds(1);

Error injected(Code code) { return {code, "injected fault"}; }

// The first rule that makes the item fail at that time.
std::optional<Error> failure(std::span<const FaultRule> rules, When when) {
  for (const FaultRule& rule : rules) {
    if (rule.fail && rule.when == when) return injected(*rule.fail);
  }
  return std::nullopt;
}

bool any(std::span<const FaultRule> rules, auto has) { return std::ranges::any_of(rules, has); }

bool dropped(std::span<const FaultRule> rules) { return any(rules, &FaultRule::drop); }
bool truncated(std::span<const FaultRule> rules) { return any(rules, &FaultRule::truncate); }
bool corrupted(std::span<const FaultRule> rules) { return any(rules, &FaultRule::corrupt); }

Duration lateness(std::span<const FaultRule> rules) {
  Duration late{0};
  for (const FaultRule& rule : rules) late = std::max(late, rule.late);
  return late;
}

bool delayed_after(const FaultRule& rule) {
  return rule.when == When::kAfter && (rule.delay > Duration::zero() || !rule.hold.empty());
}

// The byte at `offset` of the payload.
std::uint8_t& byte_at(std::span<const Fragment> payload, std::uint64_t offset) {
  for (const Fragment& fragment : payload) {
    if (offset < fragment.size()) return fragment[offset];
    offset -= fragment.size();
  }
  std::abort();  // our own offset is beyond our own payload
}

std::uint16_t rank_of(const PutItem& item) { return item.key.shard.tp; }
std::uint16_t rank_of(const GetItem& item) { return item.key.shard.tp; }

}  // namespace

// A put item with bytes of its own.
struct FaultyStore::CapturedPut {
  Key key;
  ValueHeader header;
  Bytes payload;
  bool checksum = true;
};

FaultyStore::FaultyStore(KvStore& inner, std::vector<FaultRule> rules, Clock& clock, Random& random)
    : inner_(inner), clock_(clock), random_(random) {
  for (FaultRule& rule : rules) add_rule(std::move(rule));
}

FaultyStore::~FaultyStore() = default;

// --- which rules apply -----------------------------------------------------------

bool FaultyStore::fires(Armed& armed) {
  const FaultRule& rule = armed.rule;
  if (rule.marked && !marked_) return false;
  ++armed.calls;
  const std::uint64_t count_max = rule.nth != 0 ? 1 : rule.count;
  if (count_max != 0 && armed.fired >= count_max) return false;
  if (rule.nth != 0 ? armed.calls != rule.nth : armed.calls % rule.every != 0) return false;
  ++armed.fired;
  ++faults_;
  return true;
}

FaultyStore::Plan FaultyStore::plan_ranks(Op op, std::span<const std::uint16_t> ranks) {
  Plan plan(ranks.size());
  MutexLock lock(mutex_);
  for (Armed& armed : rules_) {
    const FaultRule& rule = armed.rule;
    const auto matches = [&](std::uint16_t rank) { return !rule.rank || rule.rank == rank; };
    if (rule.op != op || std::ranges::none_of(ranks, matches) || !fires(armed)) continue;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!matches(ranks[i])) continue;
      if (rule.share_percent < 100 && !random_.chance(rule.share_percent)) continue;
      plan[i].push_back(rule);
    }
  }
  return plan;
}

template <class Item>
FaultyStore::Plan FaultyStore::plan(Op op, std::span<const Item> items) {
  std::vector<std::uint16_t> ranks;
  for (const Item& item : items) ranks.push_back(rank_of(item));
  return plan_ranks(op, ranks);
}

// --- waiting -----------------------------------------------------------------------

// The longest delay among the items', once, and every hold.
void FaultyStore::wait(const Plan& plan, When when) {
  Duration delay{0};
  std::set<std::string> holds;
  for (const std::vector<FaultRule>& rules : plan) {
    for (const FaultRule& rule : rules) {
      if (rule.when != when) continue;
      delay = std::max(delay, rule.delay);
      if (!rule.hold.empty()) holds.insert(rule.hold);
    }
  }
  if (delay > Duration::zero()) clock_.sleep_until(clock_.now() + delay);
  for (const std::string& hold : holds) wait_at(hold);
}

// Polls, so that a simulated clock can let others run.
void FaultyStore::wait_at(const std::string& hold) {
  const auto arrive = [&](int change) {
    MutexLock lock(mutex_);
    waiting_[hold] += static_cast<std::size_t>(change);
  };
  const auto is_released = [&] {
    MutexLock lock(mutex_);
    return released_.contains(hold);
  };
  arrive(1);
  while (!is_released()) clock_.sleep_until(clock_.now() + kHoldPoll);
  arrive(-1);
}

void FaultyStore::release(const std::string& hold) {
  MutexLock lock(mutex_);
  released_.insert(hold);
}

std::size_t FaultyStore::waiting_at(const std::string& hold) const {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(hold);
  return found == waiting_.end() ? 0 : found->second;
}

// --- put -----------------------------------------------------------------------------

std::uint64_t FaultyStore::draw(std::uint64_t bound) {
  MutexLock lock(mutex_);
  return random_.below(bound);
}

// The bytes as they are now, changed as the rules say. A corrupted value keeps the
// checksum of what it should have been; a truncated one is right but too short.
FaultyStore::CapturedPut FaultyStore::capture(const PutItem& item,
                                              std::span<const FaultRule> rules) {
  CapturedPut put{item.key, item.header, Bytes(total_bytes(item.payload)), item.checksum};
  gather(item.payload, put.payload, false);
  if (truncated(rules)) {
    put.payload.resize(put.payload.size() / 2);
    put.header.payload_bytes = put.payload.size();
    if ((put.header.flags & ValueHeader::kChecksummed) != 0) {
      const Fragment half(put.payload);
      set_checksum(put.header, checksum_of({&half, 1}));
    }
  }
  if (!corrupted(rules) || put.payload.empty()) return put;
  if (put.checksum) {
    const Fragment whole(put.payload);
    set_checksum(put.header, checksum_of({&whole, 1}));
    put.checksum = false;
  }
  const std::uint64_t bit = draw(put.payload.size() * 8);
  put.payload[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  return put;
}

std::vector<Status> FaultyStore::put(std::span<const PutItem> items) {
  store_late_puts();
  const Plan plan = this->plan(Op::kPut, items);
  wait(plan, When::kBefore);

  std::vector<Status> statuses(items.size());
  std::deque<CapturedPut> captured;     // stable addresses
  std::deque<ConstFragment> fragments;  // likewise
  std::vector<PutItem> passed_on;
  std::vector<std::size_t> positions;  // of passed_on in items
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::span<const FaultRule> rules = plan[i];
    if (const std::optional<Error> error = failure(rules, When::kBefore)) {
      statuses[i] = std::unexpected(*error);
      continue;
    }
    if (dropped(rules)) continue;
    if (const Duration late = lateness(rules); late > Duration::zero()) {
      statuses[i] = std::unexpected(injected(Code::kDeadline));
      CapturedPut put = capture(items[i], rules);
      MutexLock lock(mutex_);
      late_puts_.emplace(clock_.now() + late, std::move(put));
      continue;
    }
    positions.push_back(i);
    if (!truncated(rules) && !corrupted(rules) && !any(rules, delayed_after)) {
      passed_on.push_back(items[i]);
      continue;
    }
    const CapturedPut& put = captured.emplace_back(capture(items[i], rules));
    fragments.push_back(put.payload);
    passed_on.push_back({put.key, put.header, {&fragments.back(), 1}, put.checksum});
  }
  wait(plan, When::kAfter);
  const std::vector<Status> stored = inner_.put(passed_on);
  for (std::size_t i = 0; i < stored.size(); ++i) statuses[positions[i]] = stored[i];
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (auto error = failure(plan[i], When::kAfter)) statuses[i] = std::unexpected(*error);
  }
  return statuses;
}

void FaultyStore::store_late_puts() {
  std::vector<CapturedPut> due;  // in order of time, and of the calls
  {
    MutexLock lock(mutex_);
    const auto end = late_puts_.upper_bound(clock_.now());
    for (auto late = late_puts_.begin(); late != end; ++late) {
      due.push_back(std::move(late->second));
    }
    late_puts_.erase(late_puts_.begin(), end);
  }
  for (const CapturedPut& put : due) {
    const ConstFragment payload(put.payload);
    const PutItem item{put.key, put.header, {&payload, 1}, put.checksum};
    inner_.put({&item, 1});  // whoever asked for it has its answer
  }
}

// --- get, hit, purge -----------------------------------------------------------------

namespace {

// The second half of a payload, so that it can be put back over what was read.
Bytes tail_of(const GetItem& item) {
  Bytes tail;
  const std::uint64_t total = total_bytes(item.payload);
  for (std::uint64_t i = total / 2; i < total; ++i) tail.push_back(byte_at(item.payload, i));
  return tail;
}

}  // namespace

std::vector<Result<GetValue>> FaultyStore::get(std::span<const GetItem> items) {
  store_late_puts();
  const Plan plan = this->plan(Op::kGet, items);
  wait(plan, When::kBefore);

  std::vector<Result<GetValue>> values(items.size());
  std::vector<Bytes> tails(items.size());
  std::vector<GetItem> passed_on;
  std::vector<std::size_t> positions;  // of passed_on in items
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::optional<Error> error = failure(plan[i], When::kBefore);
    if (!error && dropped(plan[i])) error = injected(Code::kMiss);
    if (error) {
      values[i] = std::unexpected(*error);
      continue;
    }
    if (truncated(plan[i])) tails[i] = tail_of(items[i]);
    passed_on.push_back(items[i]);
    positions.push_back(i);
  }
  std::vector<Result<GetValue>> read = inner_.get(passed_on);
  for (std::size_t i = 0; i < read.size(); ++i) values[positions[i]] = std::move(read[i]);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (values[i]) damage(items[i], plan[i], tails[i], *values[i]);
    if (auto error = failure(plan[i], When::kAfter)) values[i] = std::unexpected(*error);
  }
  wait(plan, When::kAfter);
  return values;
}

// Changes what was delivered; the checksum is that of the bytes as they are then.
void FaultyStore::damage(const GetItem& item, std::span<const FaultRule> rules, const Bytes& tail,
                         GetValue& value) {
  const std::uint64_t total = total_bytes(item.payload);
  if (total == 0 || (!truncated(rules) && !corrupted(rules))) return;
  for (std::size_t i = 0; i < tail.size(); ++i) byte_at(item.payload, total / 2 + i) = tail[i];
  if (corrupted(rules)) {
    const std::uint64_t bit = draw(total * 8);
    byte_at(item.payload, bit / 8) ^= static_cast<std::uint8_t>(1u << bit % 8);
  }
  if (item.checksum) value.payload_checksum = checksum_of(item.payload);
}

Result<std::size_t> FaultyStore::hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                            std::span<const BlockHash> blocks) {
  store_late_puts();
  std::vector<std::uint16_t> ranks;
  for (const Shard& shard : shards) ranks.push_back(shard.tp);
  const Plan plan = plan_ranks(Op::kHit, ranks);
  wait(plan, When::kBefore);
  std::vector<FaultRule> rules;
  for (const auto& of_shard : plan) rules.insert(rules.end(), of_shard.begin(), of_shard.end());
  if (auto error = failure(rules, When::kBefore)) return std::unexpected(*error);
  Result<std::size_t> hits = dropped(rules) ? 0 : inner_.hit_prefix(scope, shards, blocks);
  wait(plan, When::kAfter);
  if (auto error = failure(rules, When::kAfter)) return std::unexpected(*error);
  return hits;
}

Status FaultyStore::remove(const Key& key) {
  store_late_puts();
  return inner_.remove(key);
}

Status FaultyStore::purge_scope(const ScopeId& scope, bool for_good) {
  store_late_puts();
  const std::uint16_t any_rank = 0;
  const Plan plan = plan_ranks(Op::kPurge, {&any_rank, 1});
  wait(plan, When::kBefore);
  if (auto error = failure(plan[0], When::kBefore)) return std::unexpected(*error);
  Status purged = dropped(plan[0]) ? Status() : inner_.purge_scope(scope, for_good);
  wait(plan, When::kAfter);
  if (auto error = failure(plan[0], When::kAfter)) return std::unexpected(*error);
  return purged;
}

// --- passed on -------------------------------------------------------------------------

void FaultyStore::describe_scope(const ScopeId& scope, const std::string& description) {
  inner_.describe_scope(scope, description);
}

Status FaultyStore::hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) {
  return inner_.hold_scope(scope, holder, lease);
}

Result<std::uint64_t> FaultyStore::remove_all() {
  store_late_puts();
  return inner_.remove_all();
}

Status FaultyStore::ping() {
  const std::uint16_t any_rank = 0;
  const Plan plan = plan_ranks(Op::kPing, {&any_rank, 1});
  wait(plan, When::kBefore);
  if (auto error = failure(plan[0], When::kBefore)) return std::unexpected(*error);
  Status alive = inner_.ping();
  wait(plan, When::kAfter);
  if (auto error = failure(plan[0], When::kAfter)) return std::unexpected(*error);
  return alive;
}

Result<StoreStats> FaultyStore::stats() {
  store_late_puts();
  return inner_.stats();
}

Result<std::vector<ScopeUsage>> FaultyStore::list_scopes() {
  store_late_puts();
  return inner_.list_scopes();
}

void FaultyStore::add_rule(FaultRule rule) {
  MutexLock lock(mutex_);
  rules_.push_back({std::move(rule)});
}

void FaultyStore::clear_rules() {
  MutexLock lock(mutex_);
  rules_.clear();
}

void FaultyStore::mark() {
  MutexLock lock(mutex_);
  marked_ = true;
  for (Armed& armed : rules_) {
    if (armed.rule.marked) armed.calls = armed.fired = 0;
  }
}

std::uint64_t FaultyStore::faults() const {
  MutexLock lock(mutex_);
  return faults_;
}

}  // namespace newmoon
