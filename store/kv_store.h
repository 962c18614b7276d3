// KvStore: where blocks go that outlive the engine's own cache. One conformance
// suite (store/conformance_test.cc) holds every backend to this contract.
//
// Any thread may call any method; calls may block on I/O for at most the time the
// backend was configured with. Values are immutable: the first put of a key wins.
// A store may give any value up at any time, except while it reads it out.
//
// Beside the errors named at each method, all of them may return kUnavailable (the
// backend cannot be reached: retry later) and kDeadline (no answer in time: a put
// or purge may or may not have happened). A failed batch repeats the error for
// every item.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "hash/key.h"
#include "hash/value.h"

namespace newmoon {

// Borrowed for the length of the call. The header must be the key's and its
// payload_bytes those of `payload` (make_header()). With `checksum` the store sets
// header.checksum and its flag itself, since it can compute it while it copies;
// else the header is stored as given.
struct PutItem {
  Key key;
  ValueHeader header;
  std::span<const ConstFragment> payload;
  bool checksum = true;
  // Only this process writes the key, since its scope is unique to it: a backend need not
  // look whether somebody else is in the middle of it.
  bool sole_writer = false;
  // Bytes in front of the payload's first fragment, of the same registered memory, for the store to
  // write its header to, for as long as it may read the payload: one piece is cheaper to move than
  // two. Zeros, or what it has left there before.
  std::size_t front_room = 0;
  // When nobody waits for it any more, by the backend's clock. Whoever gave up may have purged its
  // scope since and go on to use it: a put that comes to be findable only then is refused. Of
  // backends that a put outlives its caller in (ipc); a call that others keep track of has none.
  Time not_after = Time::max();
};

struct GetItem {
  Key key;
  std::span<const Fragment> payload;  // filled; its bytes are undefined after an error
  bool checksum = true;               // compute GetValue::payload_checksum
};

// What was read. The store does not judge it: callers run verify_header().
struct GetValue {
  ValueHeader header;
  std::uint64_t payload_checksum = 0;  // XXH3-64 of the bytes delivered, if asked for
};

// A scope that has values, or that somebody holds.
struct ScopeUsage {
  ScopeId scope;
  std::string description;             // as given to describe_scope(); may be empty
  std::uint64_t blocks = 0;            // values: a block of two shards counts twice
  std::uint64_t bytes = 0;             // headers included
  std::vector<std::string> holders{};  // who holds it now (hold_scope()), in order
};

struct StoreStats {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;          // live values, headers included
  std::uint64_t bytes_to_free = 0;  // purged or evicted, not yet returned; counts in the budget
  std::uint64_t budget_bytes = 0;   // 0: the backend has none of its own
  std::uint64_t evicted_blocks = 0;
  std::uint64_t refused_late_puts = 0;  // puts into a scope purged for good, or that nobody
                                        // waited for any more
  std::uint64_t unfinished_purges = 0;  // scopes purged whose bytes are not all back yet
  // Purged scopes that this process looks at again, for values that somebody was writing, and
  // how long until the last of them is due. 0 where a purge meets no half written value.
  std::uint64_t owed_rechecks = 0;
  std::uint64_t recheck_left_s = 0;
  // Of this process's breaker in front of the backend (store/circuit_breaker.h): how often
  // it opened, and calls answered without the backend.
  std::uint64_t breaker_opens = 0;
  std::uint64_t calls_without_backend = 0;
};

class KvStore {
 public:
  virtual ~KvStore() = default;

  // One status an item, in order. A key already there: success, the old value
  // stays. kBusy: no room now. kFenced: the key's scope was purged for good.
  // kDeadline: it came after PutItem::not_after and is not there.
  // kBadRequest: the header is not the key's or the payload's.
  virtual std::vector<Status> put(std::span<const PutItem> items) = 0;

  // Memory out of which payloads may go without being copied first, wherever a put has
  // them there and they have a checksum. `owner` keeps it mapped until the store is closed.
  // A put from it that was overdue may go on reading after the call; if the bytes change
  // under it, the value fails its checksum. Gets never land in place: a late one would write
  // over what the memory holds by then. A backend without a use for it takes no notice.
  virtual void register_memory(std::shared_ptr<const void> owner, ByteView memory) {
    (void)owner, (void)memory;
  }
  // PutItem::front_room that a payload of so many bytes in registered memory should have.
  virtual std::size_t front_room_for(std::uint64_t payload_bytes) const {
    (void)payload_bytes;
    return 0;
  }

  // One result an item, in order. kMiss: not there. kBadRequest: there and whole, as far as is
  // seen, but longer or shorter than the payload; says both. kCorrupt: there, but not whole.
  virtual std::vector<Result<GetValue>> get(std::span<const GetItem> items) = 0;

  // How many leading blocks of `blocks` are there for *every* shard: the length of
  // the contiguous hit; 0 without shards. Marks what it saw as used.
  virtual Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                         std::span<const BlockHash> blocks) = 0;

  // Makes one value unfindable, so that a put can replace it: for whoever read it and
  // found it bad. A key that is not there is no error.
  virtual Status remove(const Key& key) = 0;

  // Makes every value of a scope unfindable at once; the memory comes back behind.
  // `for_good`: the scope is unique and nobody can return to it, so late puts into
  // it are refused from now on (as far as the backend can). Else later puts fill
  // the scope anew. A scope that is not there is no error.
  virtual Status purge_scope(const ScopeId& scope, bool for_good) = 0;

  // Names a scope for list_scopes(), whether or not it holds values yet; the latest
  // one counts. Informative only: a backend may cut it short or forget it.
  virtual void describe_scope(const ScopeId& scope, const std::string& description) = 0;

  // Says that `holder` (an engine, named so that people find it; up to 256 bytes) uses
  // the scope, for `lease` from now on; a later call replaces the lease, one of zero
  // ends it. A purge at somebody's request looks at ScopeUsage::holders first
  // (store/scope_purge.h); nothing else heeds it, so this is about memory, never about
  // correctness. A store that restarts forgets it: renew it well within the lease.
  // A backend that keeps time in coarse steps may let a lease last up to a minute
  // longer, an ended one too. kBusy: too many are held.
  virtual Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) = 0;

  // Removes every value of every scope (upstream's `remove_all(force=True)`), for
  // reset_mode remove_all. The number removed; a backend that keeps records of scopes
  // beside the values counts them too.
  virtual Result<std::uint64_t> remove_all() = 0;

  // Whether the backend answers now, as cheaply as it can be asked; no value is touched.
  virtual Status ping() = 0;

  virtual Result<StoreStats> stats() = 0;
  // StoreStats::calls_without_backend, also while the backend does not answer, which is not asked.
  virtual std::uint64_t calls_without_backend() const { return 0; }
  // In the order of their ids.
  virtual Result<std::vector<ScopeUsage>> list_scopes() = 0;

  // True: a read never overlaps the eviction of what it reads, so that a checksum
  // may be left out (rule SELF).
  virtual bool reads_are_atomic() const = 0;
};

}  // namespace newmoon
