// What a rank does for the lookup/admin channel. StoreWorker is the real one.
#pragma once

#include <functional>

#include "admin/protocol.h"

namespace newmoon {

class LookupBackend {
 public:
  virtual ~LookupBackend() = default;

  // Length in blocks of the contiguous hit over every rank's shard. Blocks on the
  // store; called from the server's lookup executors, several at a time.
  virtual Result<std::size_t> lookup(const LookupRequest& request) = 0;

  // Raises the sticky floor and drops queued jobs below it (reported as ended).
  // Never blocks.
  virtual FenceAck fence(Epoch epoch) = 0;

  // The weights are to count as written though nobody announced it: jobs of the epochs heard
  // of are refused and reported (rule BIND). Never blocks.
  virtual FenceAck weights_written() = 0;

  // As fence(), and in ResetMode::kRemoveAll `done` comes only after every job
  // queued or running before it has ended and, with `remove`, after the store was
  // emptied, its code checked and its count re-read as 0. `done` may be called from
  // any thread, or from within.
  virtual void reset(const ResetRequest& request, std::function<void(Result<ResetAck>)> done) = 0;

  // `done` once every job queued or running now has ended.
  virtual void drain(std::function<void(Result<FenceAck>)> done) = 0;

  // Figures of this rank and of the store; those of the server are filled in by it.
  // Blocks on the store, as the two below; all three are called from the bulk executor.
  virtual RankStats rank_stats() = 0;
  virtual Result<ScopesPage> list_scopes(const ScopesRequest& request) = 0;
  // Rule PURGE: refused with kBusy, whole, while anyone uses a scope of the selection.
  // `done` is called once it is known what will be purged; the purge comes after it,
  // before the call returns, and rank_stats() tells how it went.
  virtual void purge(const PurgeRequest& request, std::function<void(Result<PurgeAck>)> done) = 0;

  // What fence() would answer now, changing nothing: the answer to a ping.
  virtual FenceAck status() = 0;
};

}  // namespace newmoon
