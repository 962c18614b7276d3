// TransferQueue: a bounded queue of jobs that run in their order on an executor, one at a
// time or, where a store call costs more than its bytes, some together.
// Queued jobs can be taken back; a mark tells when all that was queued before it ended.
// Marks are bounded too: peers ask for them, and behind a job that is stuck they pile up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/contain.h"
#include "base/executor.h"
#include "base/thread_annotations.h"

namespace newmoon {

// Any thread may call. The executor holds at most one task of a queue at a time, so
// jobs taken back leave nothing behind in it, however long it is stuck. Must outlive
// the executor's tasks. `run` and marks are called on the executor, without any lock.
template <class Job>
class TransferQueue {
 public:
  using Run = std::function<void(std::span<const Job> jobs)>;  // at least one
  using Weight = std::function<std::size_t(const Job&)>;

  // Jobs that follow each other run together while their weights sum up to `together_max` at
  // most; without a `weight` each runs alone.
  TransferQueue(Executor& executor, std::size_t jobs_max, std::size_t marks_max, Run run,
                Weight weight = nullptr, std::size_t together_max = 0)
      : executor_(executor),
        jobs_max_(jobs_max),
        marks_max_(marks_max),
        run_(std::move(run)),
        weight_(std::move(weight)),
        together_max_(together_max) {}

  // Hands the job back if `jobs_max` are queued or the queue is closed.
  std::optional<Job> push(Job job) {
    {
      MutexLock lock(mutex_);
      if (closed_ || jobs_ >= jobs_max_) return job;
      items_.emplace_back(std::move(job));
      ++jobs_;
    }
    pump();
    return std::nullopt;
  }

  // `reached` once every job queued or running now has ended or was taken. False:
  // `marks_max` are waiting, and this one is not among them.
  bool mark(std::function<void()> reached) {
    {
      MutexLock lock(mutex_);
      if (items_.size() - jobs_ >= marks_max_) return false;
      items_.emplace_back(std::move(reached));
    }
    pump();
    return true;
  }

  // Jobs that are queued, without those running.
  std::size_t size() const {
    MutexLock lock(mutex_);
    return jobs_;
  }

  // Takes back the queued jobs that `wanted` says; those running are not among them. Should
  // memory run out, all stay. `wanted` must not throw.
  std::vector<Job> take_if(const std::function<bool(const Job&)>& wanted) {
    MutexLock lock(mutex_);
    std::vector<Job> taken;
    taken.reserve(jobs_);  // nothing may throw once a job has been moved
    auto kept = items_.begin();
    for (auto item = items_.begin(); item != items_.end(); ++item) {
      Job* job = std::get_if<Job>(&*item);
      if (job != nullptr && wanted(*job)) {
        taken.push_back(std::move(*job));
      } else {
        if (kept != item) *kept = std::move(*item);
        ++kept;
      }
    }
    items_.erase(kept, items_.end());
    jobs_ -= taken.size();
    return taken;
  }

  // Refuses jobs from now on and takes back those queued. Marks go on.
  std::vector<Job> close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    return take_if([](const Job&) { return true; });
  }

  // Posts the one task, unless it is out already or there is nothing to do. Each push, mark and
  // end of a run does, so it is for the case that memory ran out in one of them.
  void pump() {
    {
      MutexLock lock(mutex_);
      if (posted_ || items_.empty()) return;
      posted_ = true;
    }
    const Status posted = contain([this] { executor_.post([this] { run_one(); }); });
    if (posted) return;
    {
      MutexLock lock(mutex_);
      posted_ = false;
    }
    thrown_.add(posted.error());
  }

 private:
  using Mark = std::function<void()>;
  using Item = std::variant<Job, Mark>;

  void run_one() {
    // Memory may run out when jobs are taken; they stay queued then.
    const Status ran = contain([this] {
      if (const std::vector<Job> jobs = pop_jobs(); !jobs.empty()) {
        run_(jobs);
      } else if (const Mark reached = pop_mark()) {
        reached();
      }
    });
    if (!ran) thrown_.add(ran.error());
    {
      MutexLock lock(mutex_);
      posted_ = false;
    }
    pump();
  }

  // Those at the head that run together; none if a mark is there.
  std::vector<Job> pop_jobs() {
    MutexLock lock(mutex_);
    std::vector<Job> jobs;
    const std::size_t count = count_together();
    jobs.reserve(count);
    for (std::size_t left = count; left > 0; --left) {
      jobs.push_back(std::move(std::get<Job>(items_.front())));
      items_.pop_front();
      --jobs_;
    }
    return jobs;
  }

  std::size_t count_together() const NM_REQUIRES(mutex_) {
    std::size_t count = 0;
    std::size_t weight = 0;
    for (const Item& item : items_) {
      const Job* const job = std::get_if<Job>(&item);
      if (job == nullptr) break;
      weight += weight_ ? weight_(*job) : 1;
      if (count > 0 && weight > together_max_) break;
      ++count;
    }
    return count;
  }

  // nullptr: no mark is at the head.
  Mark pop_mark() {
    MutexLock lock(mutex_);
    if (items_.empty() || !std::holds_alternative<Mark>(items_.front())) return nullptr;
    Mark mark = std::move(std::get<Mark>(items_.front()));
    items_.pop_front();
    return mark;
  }

  Executor& executor_;
  const std::size_t jobs_max_;
  const std::size_t marks_max_;
  const Run run_;
  const Weight weight_;
  const std::size_t together_max_;
  ErrorCounter thrown_{"transfer_queue"};

  mutable Mutex mutex_;
  std::deque<Item> items_ NM_GUARDED_BY(mutex_);
  std::size_t jobs_ NM_GUARDED_BY(mutex_) = 0;  // of items_; marks do not count
  bool posted_ NM_GUARDED_BY(mutex_) = false;
  bool closed_ NM_GUARDED_BY(mutex_) = false;
};

}  // namespace newmoon
