// Which scopes of a Mooncake store this process may still use, and what is left to purge
// of the others. The master removes values by pattern, which takes a time that grows with
// its keys; so a purge is a note here, kept at once, and work for a thread behind
// (store/mooncake/purger.h).
//
// A scope that is being purged is hidden: lookups and gets miss, puts wait until it is
// empty, and one purged for good refuses puts for ever. Any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "hash/scope.h"
#include "store/recent_map.h"

namespace newmoon {

class ScopeGate : public std::enable_shared_from_this<ScopeGate> {
 public:
  struct Options {
    // After a scope was found empty, it is purged once more so much later each: values
    // that somebody was writing meanwhile are in no pattern's reach until they are
    // complete or the master has given them up.
    std::vector<Duration> recheck_delays;
    std::size_t fenced_scopes_max = 65536;  // over this many the oldest is forgotten
  };
  // A put under way: a purge of its scope begins after it.
  class Put {
   public:
    explicit Put(const ScopeId& scope) : scope_(scope) {}
    ~Put() {
      if (gate_ != nullptr) gate_->end_put(scope_);
    }
    void begun(std::shared_ptr<ScopeGate> gate) { gate_ = std::move(gate); }  // once it counts
    Put(const Put&) = delete;
    Put& operator=(const Put&) = delete;

   private:
    std::shared_ptr<ScopeGate> gate_;
    ScopeId scope_;
  };
  struct Work {
    ScopeId scope;
    bool recheck = false;
  };
  struct Counts {
    std::uint64_t pending = 0;
    std::uint64_t rechecks = 0;
    Duration recheck_left{0};  // until the last one is due
    std::uint64_t removed = 0;
  };

  // `clock`: SystemClock, must outlive the gate.
  ScopeGate(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

  // kFenced: purged for good. kBusy: still being purged (which says nothing bad of the store).
  Result<std::unique_ptr<Put>> begin_put(const ScopeId& scope, Time deadline);
  bool is_hidden(const ScopeId& scope);
  void purge(const ScopeId& scope, bool for_good);
  Counts counts();

  // For the thread behind. Waits for work that is due, `scopes_max` at most; empty: stop()
  // was called.
  std::vector<Work> next_work(std::size_t scopes_max);
  // What a pass over them came to. `removed`: of all of them together.
  void finish(std::span<const Work> work, std::uint64_t removed);
  // The pass failed; it is due again later.
  void put_off(std::span<const Work> work, Duration delay);
  // False: stop() was called, before or meanwhile.
  bool pause(Duration duration);
  void stop();

 private:
  struct Purge {
    Time due{0};
    bool renewed = false;  // asked for again during a pass
  };
  struct Recheck {
    Time due{0};
    std::size_t next_delay = 0;
  };

  void end_put(const ScopeId& scope);
  void collect(Time now, std::size_t scopes_max, std::vector<Work>& work) NM_REQUIRES(mutex_);
  Time next_due() const NM_REQUIRES(mutex_);
  Duration recheck_left(Time now) const NM_REQUIRES(mutex_);
  void schedule_recheck(const ScopeId& scope, std::size_t delay) NM_REQUIRES(mutex_);

  const Options options_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  RecentMap<ScopeId, bool> fenced_ NM_GUARDED_BY(mutex_){options_.fenced_scopes_max};
  std::map<ScopeId, Purge> pending_ NM_GUARDED_BY(mutex_);
  std::map<ScopeId, Recheck> rechecks_ NM_GUARDED_BY(mutex_);
  std::map<ScopeId, std::size_t> puts_ NM_GUARDED_BY(mutex_);
  std::uint64_t removed_ NM_GUARDED_BY(mutex_) = 0;
  bool stopping_ NM_GUARDED_BY(mutex_) = false;
};

}  // namespace newmoon
