// TransferQueue: a bounded queue of jobs that run one after the other on an executor.
// Queued jobs can be taken back; a mark tells when all that was queued before it ended.
// Marks are bounded too: peers ask for them, and behind a job that is stuck they pile up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/executor.h"
#include "base/thread_annotations.h"

namespace newmoon {

// Any thread may call. The executor holds at most one task of a queue at a time, so
// jobs taken back leave nothing behind in it, however long it is stuck. Must outlive
// the executor's tasks. `run` and marks are called on the executor, without any lock.
template <class Job>
class TransferQueue {
 public:
  TransferQueue(Executor& executor, std::size_t jobs_max, std::size_t marks_max,
                std::function<void(const Job&)> run)
      : executor_(executor), jobs_max_(jobs_max), marks_max_(marks_max), run_(std::move(run)) {}

  // Hands the job back if `jobs_max` are queued or the queue is closed.
  std::optional<Job> push(Job job) {
    {
      MutexLock lock(mutex_);
      if (closed_ || jobs_ >= jobs_max_) return job;
      ++jobs_;
      items_.emplace_back(std::move(job));
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

  // Jobs that are queued, without the running one.
  std::size_t size() const {
    MutexLock lock(mutex_);
    return jobs_;
  }

  // Takes back the queued jobs that `wanted` says; the running one is not among them.
  std::vector<Job> take_if(const std::function<bool(const Job&)>& wanted) {
    MutexLock lock(mutex_);
    std::vector<Job> taken;
    std::deque<Item> kept;
    for (Item& item : items_) {
      Job* job = std::get_if<Job>(&item);
      if (job != nullptr && wanted(*job)) {
        taken.push_back(std::move(*job));
      } else {
        kept.push_back(std::move(item));
      }
    }
    jobs_ -= taken.size();
    items_.swap(kept);
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

 private:
  using Mark = std::function<void()>;
  using Item = std::variant<Job, Mark>;

  // Posts the one task, unless it is out already or there is nothing to do.
  void pump() {
    {
      MutexLock lock(mutex_);
      if (posted_ || items_.empty()) return;
      posted_ = true;
    }
    executor_.post([this] { run_one(); });
  }

  void run_one() {
    if (std::optional<Item> item = pop()) {
      if (const Job* job = std::get_if<Job>(&*item)) {
        run_(*job);
      } else {
        std::get<Mark> (*item)();
      }
    }
    {
      MutexLock lock(mutex_);
      posted_ = false;
    }
    pump();
  }

  std::optional<Item> pop() {
    MutexLock lock(mutex_);
    if (items_.empty()) return std::nullopt;
    std::optional<Item> item(std::move(items_.front()));
    items_.pop_front();
    if (std::holds_alternative<Job>(*item)) --jobs_;
    return item;
  }

  Executor& executor_;
  const std::size_t jobs_max_;
  const std::size_t marks_max_;
  const std::function<void(const Job&)> run_;

  mutable Mutex mutex_;
  std::deque<Item> items_ NM_GUARDED_BY(mutex_);
  std::size_t jobs_ NM_GUARDED_BY(mutex_) = 0;  // of items_; marks do not count
  bool posted_ NM_GUARDED_BY(mutex_) = false;
  bool closed_ NM_GUARDED_BY(mutex_) = false;
};

}  // namespace newmoon
