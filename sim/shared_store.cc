#include "sim/shared_store.h"

#include <utility>

#include "sim/task_queue.h"

namespace newmoon::sim {
namespace {

// A put or get that moves nothing because its process died under it.
Error dead() { return {Code::kUnavailable, "the process is dead"}; }
std::uint64_t short_id(const ScopeId& scope) { return load_le<std::uint64_t>(scope.bytes.data()); }
Error unreachable() { return {Code::kUnavailable, "the store cannot be reached"}; }

}  // namespace

SimStore::SimStore(SharedStore& shared, std::size_t replica, const Process& process,
                   SimMemory* memory, std::function<Epoch()> epoch)
    : shared_(shared),
      replica_(replica),
      process_(process),
      memory_(memory),
      epoch_(std::move(epoch)) {}

bool SimStore::draw(unsigned percent) { return shared_.kernel.random().chance(percent); }

bool SimStore::fault(unsigned percent) {
  if (!draw(percent)) return false;
  shared_.verdict.note_fault();
  return true;
}

void SimStore::take_time() {
  Random& random = shared_.kernel.random();
  const bool slow = !std::exchange(shared_.was_slow, true) || draw(shared_.faults.slow_percent);
  if (slow) shared_.verdict.note_fault();
  shared_.kernel.sleep_for(
      draw_duration(random, Duration{0}, slow ? shared_.faults.slow_max : shared_.faults.call_max));
}

template <class Item>
void SimStore::announce(std::span<const Item> items) {
  if (!on_transfer) return;
  std::vector<const std::uint8_t*> addresses;
  for (const Item& item : items) addresses.push_back(item.payload.front().data());
  on_transfer(addresses);
}

// An error if the call as a whole comes to nothing.
Status SimStore::begin_call() {
  if (on_call) on_call();
  if (!process_.alive) return std::unexpected(dead());
  if (!fault(shared_.faults.call_fail_percent)) return {};
  take_time();
  return std::unexpected(unreachable());
}

std::vector<Status> SimStore::put(std::span<const PutItem> items) {
  announce(items);
  std::vector<Status> results(items.size());
  if (const Status begun = begin_call(); !begun) {
    results.assign(items.size(), begun);
    return results;
  }
  const Epoch before = epoch_();
  // Some stores copy at once and publish late, others read the source late.
  const bool copy_first = draw(50);
  std::vector<Bytes> staged(items.size());
  for (std::size_t i = 0; copy_first && i < items.size(); ++i) {
    for (const ConstFragment part : items[i].payload) {
      if (memory_ != nullptr) memory_->check_transfer_from(part.data());
      append(staged[i], part);
    }
  }
  take_time();
  for (std::size_t i = 0; i < items.size(); ++i) {
    results[i] = put_one(items[i], copy_first ? &staged[i] : nullptr);
  }
  if (draw(30)) take_time();
  if (epoch_() != before) shared_.verdict.saw(Overlap::kPutAcrossFence);
  return results;
}

Status SimStore::put_one(const PutItem& item, const Bytes* staged) {
  if (!process_.alive) return std::unexpected(dead());
  if (fault(shared_.faults.item_fail_percent)) {
    return draw(50) ? fail(Code::kBusy, "no room now") : std::unexpected(unreachable());
  }
  PutItem real = item;
  const ConstFragment whole = staged != nullptr ? ConstFragment(*staged) : ConstFragment{};
  if (staged != nullptr) {
    real.payload = {&whole, 1};
  } else if (memory_ != nullptr) {
    for (const ConstFragment part : item.payload) memory_->check_transfer_from(part.data());
  }
  if (on_put) on_put();
  const std::string name = item.key.to_string();
  if (shared_.putter.emplace(name, replica_).second) shared_.keys.push_back(item.key);
  const Status stored = shared_.inner.put({&real, 1}).front();
  shared_.kernel.trace("put", {replica_, item.key.shard.packed(), short_id(item.key.scope),
                               item.key.block.event_int(), stored.has_value()});
  return stored;
}

std::vector<Result<GetValue>> SimStore::get(std::span<const GetItem> items) {
  announce(items);
  std::vector<Result<GetValue>> results;
  if (const Status begun = begin_call(); !begun) {
    results.assign(items.size(), std::unexpected(begun.error()));
    return results;
  }
  const Epoch before = epoch_();
  // Either way round: read, then deliver late; or wait, then read and deliver.
  const bool late = draw(50);
  if (!late) take_time();
  bool good = true;
  for (const GetItem& item : items) {
    Delivery delivery = get_one(item, late);
    if (good && delivery.changed) ++corrupt_delivered_;
    good = good && delivery.value && !delivery.changed;
    results.push_back(std::move(delivery.value));
  }
  if (draw(30)) take_time();
  if (epoch_() != before) shared_.verdict.saw(Overlap::kLoadAcrossFence);
  return results;
}

SimStore::Delivery SimStore::get_one(const GetItem& item, bool late) {
  Bytes delivered(total_bytes(item.payload));
  Delivery delivery = read(item, delivered);
  const bool found = delivery.value.has_value();
  if (late) take_time();
  if (!process_.alive) return {std::unexpected(dead()), false};
  if (!found) {  // the contract leaves the bytes undefined: make them so
    const auto fill = static_cast<std::uint8_t>(shared_.kernel.random().next());
    delivered.assign(delivered.size(), fill);
  }
  for (const Fragment part : item.payload) {
    if (memory_ != nullptr) memory_->check_transfer_to(part.data());
  }
  scatter(delivered, item.payload, false);
  if (found && on_loaded) on_loaded(item.key);
  if (found && shared_.putter.at(item.key.to_string()) != replica_) {
    shared_.verdict.saw(Overlap::kReplicaHit);
  }
  shared_.kernel.trace("get", {replica_, item.key.shard.packed(), short_id(item.key.scope),
                               item.key.block.event_int(), found});
  return delivery;
}

// What the store delivers for an item, faults included.
SimStore::Delivery SimStore::read(const GetItem& item, MutableByteView to) {
  if (fault(shared_.faults.item_fail_percent)) return {std::unexpected(unreachable()), false};
  if (fault(shared_.faults.forget_percent)) {
    shared_.verdict.saw(Overlap::kMissingValue);
    return {fail(Code::kMiss, "not there any more"), false};
  }
  const Fragment whole(to);
  GetItem real{.key = item.key, .payload = {&whole, 1}, .checksum = item.checksum};
  const Key* other = draw(shared_.faults.misdirect_percent) ? other_key(item.key) : nullptr;
  if (other != nullptr) real.key = *other;
  Delivery delivery{shared_.inner.get({&real, 1}).front()};
  if (!delivery.value) {
    if (delivery.value.error().code == Code::kMiss) shared_.verdict.saw(Overlap::kMissingValue);
    return delivery;
  }
  if (other != nullptr) {
    shared_.verdict.note_fault();
    shared_.verdict.saw(Overlap::kMisdirectedValue);
    delivery.changed = true;
  } else if (fault(shared_.faults.corrupt_percent)) {
    shared_.verdict.saw(Overlap::kCorruptValue);
    delivery.changed = true;
    to[shared_.kernel.random().below(to.size())] ^= 0x10;
    delivery.value->payload_checksum = item.checksum ? checksum_of({&whole, 1}) : 0;
  }
  return delivery;
}

const Key* SimStore::other_key(const Key& key) {
  const Key& other = shared_.keys[shared_.kernel.random().below(shared_.keys.size())];
  return other == key ? nullptr : &other;
}

Result<std::size_t> SimStore::hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                         std::span<const BlockHash> blocks) {
  if (const Status begun = begin_call(); !begun) return std::unexpected(begun.error());
  const Epoch before = epoch_();
  if (draw(50)) take_time();
  Result<std::size_t> hit = shared_.inner.hit_prefix(scope, shards, blocks);
  if (draw(50)) take_time();
  if (epoch_() != before) shared_.verdict.saw(Overlap::kLookupAcrossFence);
  shared_.kernel.trace("hit_prefix", {replica_, blocks.size(), hit.value_or(0)});
  return hit;
}

Status SimStore::remove(const Key& key) {
  if (const Status begun = begin_call(); !begun) return begun;
  take_time();
  if (!process_.alive) return std::unexpected(dead());
  shared_.kernel.trace("remove",
                       {replica_, key.shard.packed(), short_id(key.scope), key.block.event_int()});
  return shared_.inner.remove(key);
}

Status SimStore::purge_scope(const ScopeId& scope, bool for_good) {
  if (const Status begun = begin_call(); !begun) return begun;
  take_time();
  if (!process_.alive) return std::unexpected(dead());
  shared_.kernel.trace("purge", {replica_, short_id(scope), for_good});
  return shared_.inner.purge_scope(scope, for_good);
}

void SimStore::describe_scope(const ScopeId& scope, const std::string& description) {
  shared_.inner.describe_scope(scope, description);
}

Status SimStore::hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) {
  if (const Status begun = begin_call(); !begun) return begun;
  take_time();
  if (!process_.alive) return std::unexpected(dead());
  return shared_.inner.hold_scope(scope, holder, lease);
}

Result<std::uint64_t> SimStore::remove_all() {
  if (const Status begun = begin_call(); !begun) return std::unexpected(begun.error());
  if (on_remove_all) on_remove_all();
  take_time();
  if (!process_.alive) return std::unexpected(dead());
  shared_.kernel.trace("remove_all", {replica_});
  return shared_.inner.remove_all();
}

Status SimStore::ping() {
  if (const Status begun = begin_call(); !begun) return begun;
  return shared_.inner.ping();
}

Result<StoreStats> SimStore::stats() {
  if (const Status begun = begin_call(); !begun) return std::unexpected(begun.error());
  return shared_.inner.stats();
}

Result<std::vector<ScopeUsage>> SimStore::list_scopes() {
  if (const Status begun = begin_call(); !begun) return std::unexpected(begun.error());
  return shared_.inner.list_scopes();
}

}  // namespace newmoon::sim
