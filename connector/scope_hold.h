// ScopeHold: keeps the leases of the scopes that an engine uses (KvStore::hold_scope()),
// so that nobody purges what is in use (rule PURGE). The store is the only thing that
// engines share, so it is the store that is told.
//
// Used are: the scope that the fence has open, and those of saves and loads that have not
// ended. A lease lasts three renewals, so that an engine that dies is forgotten soon and
// a store that hiccups forgets nobody.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/contain.h"
#include "base/executor.h"
#include "base/thread_annotations.h"
#include "connector/fence.h"
#include "store/kv_store.h"

namespace newmoon {

class ScopeHold {
 public:
  struct Options {
    std::string holder;  // unique among the users of the store, and tells people which
    Duration renew_interval = std::chrono::seconds(20);
    Duration lease = std::chrono::seconds(60);
  };

  // The store is called on `executor` only, by one task at a time. All references must
  // outlive it, and it must outlive the executor's tasks.
  ScopeHold(Options options, KvStore& store, Clock& clock, Executor& executor);

  // The engine's housekeeping, at every step, at every fence and when idle; costs nothing
  // until the epoch has moved or a second has passed. `busy` says the scopes of jobs that
  // have not ended. One thread; does not block.
  void keep(const Fence& fence, const std::function<std::set<ScopeId>()>& busy);
  // The same for a rank, which is told what is used: scopes and their descriptions ("" where
  // unknown). Any thread.
  void want(std::map<ScopeId, std::string> scopes);
  // Renews what is due; for an idle rank, once a second. Any thread.
  void renew() { post(); }
  // The engine ends: gives all leases back, without waiting for it.
  void release();

 private:
  void post();
  void run_one();
  void tell_store();
  void end(const Status& task);
  std::optional<ScopeId> next_change(Time now) const NM_REQUIRES(mutex_);

  const Options options_;
  KvStore& store_;
  Clock& clock_;
  Executor& executor_;

  ErrorCounter thrown_{"scope_hold"};
  Epoch kept_epoch_ = 0;  // of the last keep() that looked
  Time next_keep_{};

  Mutex mutex_;
  std::set<ScopeId> wanted_ NM_GUARDED_BY(mutex_);
  std::map<ScopeId, std::string> descriptions_
      NM_GUARDED_BY(mutex_);                                // of wanted_ scopes, if known
  std::map<ScopeId, Time> renew_at_ NM_GUARDED_BY(mutex_);  // of those held
  bool posted_ NM_GUARDED_BY(mutex_) = false;
};

}  // namespace newmoon
