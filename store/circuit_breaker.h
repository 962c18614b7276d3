// CircuitBreaker: when to leave a backend alone that does not answer, and when to try it
// again. A state machine that is told what happened and the time; it waits for nothing.
//
//   closed     calls go to the backend
//     | calls in a row failed, or a ping failed or is overdue
//   open       no call does
//     | a ping is answered, not too soon after a failed trial
//   half-open  one call at a time does, as a trial: answered -> closed, else -> open
//
// A ping alone does not close it: a backend may answer pings and nothing else. How often
// such a one is tried halves with each failed trial, down to once in `retry_max`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"

namespace newmoon {

// Any thread may call. Logs one line as the backend is given up and one as it is back. What it
// is told it knows even if memory runs out, which costs the line at most.
class CircuitBreaker {
 public:
  enum class State : std::uint8_t { kClosed, kOpen, kHalfOpen };

  struct Options {
    int failures_max = 3;  // calls in a row, then it opens
    // A ping that takes longer has failed, while it still runs.
    Duration ping_timeout = std::chrono::seconds(2);
    // Between a failed call and the next trial: the first, and the longest.
    Duration retry_min = std::chrono::seconds(1);
    Duration retry_max = std::chrono::seconds(30);
  };
  struct Figures {
    State state = State::kClosed;
    std::uint64_t opens = 0;          // from closed
    std::uint64_t refused_calls = 0;  // that did without the backend
  };
  // Names the call to note(), so that an answer from before a change counts for nothing.
  using Admission = std::uint64_t;

  // `name`: of the backend, in log lines and errors.
  CircuitBreaker(std::string name, const Options& options)
      : name_(std::move(name)), options_(options) {}

  // nullopt: do without the backend. Else make the call, and then note() it.
  std::optional<Admission> admit(Time now) noexcept;
  // `outcome`: of the call; an error counts as failed if is_unreachable().
  void note(Admission admission, Time now, const Status& outcome) noexcept;

  // Around each ping; one at a time.
  void begin_ping(Time now) noexcept;
  void end_ping(Time now, const Status& pinged) noexcept;

  Figures figures() const;
  // kUnavailable: what whoever is refused is told.
  Error refusal() const { return {Code::kUnavailable, name_ + " does not answer; left alone"}; }

  // kUnavailable or kDeadline. Every other error is an answer.
  static bool is_unreachable(const Status& status);

 private:
  std::string open(Time now, std::string_view why) noexcept NM_REQUIRES(mutex_);
  std::string close(Time now) noexcept NM_REQUIRES(mutex_);
  void enter(State state) noexcept NM_REQUIRES(mutex_);

  const std::string name_;
  const Options options_;

  mutable Mutex mutex_;
  Figures figures_ NM_GUARDED_BY(mutex_);
  Admission current_ NM_GUARDED_BY(mutex_) = 1;  // another one in each state
  int failures_ NM_GUARDED_BY(mutex_) = 0;       // in a row
  bool trial_under_way_ NM_GUARDED_BY(mutex_) = false;
  std::optional<Time> ping_began_ NM_GUARDED_BY(mutex_);
  Time opened_at_ NM_GUARDED_BY(mutex_){0};
  std::uint64_t refused_before_ NM_GUARDED_BY(mutex_) = 0;  // as it opened
  Time trial_not_before_ NM_GUARDED_BY(mutex_){0};
  Duration retry_ NM_GUARDED_BY(mutex_){0};  // 0: retry_min
};

}  // namespace newmoon
