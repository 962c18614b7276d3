// A backend that holds a set of hashes and writes down what it was asked. A lookup of
// `held_blocks` blocks waits until release_held_lookup().
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "admin/lookup_backend.h"

namespace newmoon::testing {

class FakeBackend final : public LookupBackend {
 public:
  Result<std::size_t> lookup(const LookupRequest& request) override {
    if (held_blocks != 0 && request.block_hashes.size() == held_blocks) held_.wait();
    if (out_of_memory) throw std::bad_alloc();
    std::lock_guard lock(mutex_);
    lookups.push_back(request);
    if (lookup_error) return std::unexpected(*lookup_error);
    std::size_t hit = 0;
    while (hit < request.block_hashes.size() && present.contains(request.block_hashes[hit].hex())) {
      ++hit;
    }
    return hit;
  }
  FenceAck fence(Epoch epoch) override {
    if (out_of_memory) throw std::bad_alloc();
    std::lock_guard lock(mutex_);
    ack.floor = std::max(ack.floor, epoch);
    return ack;
  }
  FenceAck weights_written() override {
    std::lock_guard lock(mutex_);
    ++ack.floor;
    ++ack.weight_writes;
    return ack;
  }
  void reset(const ResetRequest& request, std::function<void(Result<ResetAck>)> done) override {
    resets.push_back(request);
    const FenceAck fenced = fence(request.epoch);
    if (reset_error) return done(std::unexpected(*reset_error));
    std::lock_guard lock(mutex_);
    const std::size_t removed = request.remove ? present.size() : 0;
    if (request.remove) present.clear();
    done(ResetAck{.fence = fenced, .removed = removed, .remaining = present.size()});
  }
  void drain(std::function<void(Result<FenceAck>)> done) override { done(status()); }
  FenceAck status() override {
    std::lock_guard lock(mutex_);
    return ack;
  }

  RankStats rank_stats() override { return figures; }
  Result<ScopesPage> list_scopes(const ScopesRequest& request) override {
    // One scope a page.
    const auto next = std::ranges::find_if(scopes, [&](const ScopeUsage& usage) {
      return !request.after || usage.scope > *request.after;
    });
    ScopesPage page;
    if (next != scopes.end()) page.scopes.push_back(*next);
    page.more = next != scopes.end() && next + 1 != scopes.end();
    return page;
  }
  void purge(const PurgeRequest& request, std::function<void(Result<PurgeAck>)> done) override {
    purges.push_back(request.selection);
    if (purge_error) return done(std::unexpected(*purge_error));
    done(PurgeAck{.scopes = 1, .blocks = 2, .bytes = 3});
  }

  void release_held_lookup() { held_.count_down(); }

  // Set before use, read after the server stopped.
  std::set<std::string> present;  // hex
  std::size_t held_blocks = 0;
  std::atomic<bool> out_of_memory = false;
  std::optional<Error> lookup_error;
  std::optional<Error> reset_error;
  FenceAck ack;
  RankStats figures;
  std::vector<ScopeUsage> scopes;
  std::optional<Error> purge_error;
  std::vector<ScopeSelection> purges;
  std::vector<LookupRequest> lookups;
  std::vector<ResetRequest> resets;

 private:
  std::latch held_{1};
  std::mutex mutex_;
};

}  // namespace newmoon::testing
