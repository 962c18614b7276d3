#include "store/circuit_breaker.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/contain.h"
#include "base/log.h"

namespace newmoon {
namespace {

template <class Make>
std::string line_of(Make make) noexcept {
  return contain([&]() -> Result<std::string> { return make(); }).value_or("");
}

void log_change(const std::string& line) noexcept {
  if (line.empty()) return;
  (void)contain([&] { log(LogLevel::kWarning, "store", line); });
}

}  // namespace

bool CircuitBreaker::is_unreachable(const Status& status) {
  return !status &&
         (status.error().code == Code::kUnavailable || status.error().code == Code::kDeadline);
}

// --- calls ---

std::optional<CircuitBreaker::Admission> CircuitBreaker::admit(Time now) noexcept {
  std::string line;
  std::optional<Admission> admission;
  {
    MutexLock lock(mutex_);
    const bool overdue = ping_began_ && now - *ping_began_ > options_.ping_timeout;
    if (overdue && figures_.state != State::kOpen) {
      line = open(now, "a ping is not answered in time");
    }
    if (figures_.state == State::kOpen || trial_under_way_) {
      ++figures_.refused_calls;
    } else {
      trial_under_way_ = figures_.state == State::kHalfOpen;
      admission = current_;
    }
  }
  log_change(line);
  return admission;
}

void CircuitBreaker::note(Admission admission, Time now, const Status& outcome) noexcept {
  std::string line;
  {
    MutexLock lock(mutex_);
    if (admission != current_) return;
    const bool is_trial = figures_.state == State::kHalfOpen;
    if (!is_unreachable(outcome)) {
      failures_ = 0;
      if (is_trial) line = close(now);
    } else if (is_trial || ++failures_ >= options_.failures_max) {
      line = open(now, outcome.error().message);
      // The backend may well answer pings all the time.
      retry_ = is_trial ? std::min(2 * retry_, options_.retry_max) : options_.retry_min;
      trial_not_before_ = now + retry_;
    }
  }
  log_change(line);
}

// --- pings ---

void CircuitBreaker::begin_ping(Time now) noexcept {
  MutexLock lock(mutex_);
  ping_began_ = now;
}

void CircuitBreaker::end_ping(Time now, const Status& pinged) noexcept {
  std::string line;
  {
    MutexLock lock(mutex_);
    const bool late = ping_began_ && now - *ping_began_ > options_.ping_timeout;
    ping_began_.reset();
    if (late || is_unreachable(pinged)) {
      line = open(now, pinged ? "a ping was not answered in time"
                              : std::string_view(pinged.error().message));
    } else if (figures_.state == State::kOpen && now >= trial_not_before_) {
      enter(State::kHalfOpen);
    }
  }
  log_change(line);
}

// --- changes ---

void CircuitBreaker::enter(State state) noexcept {
  figures_.state = state;
  ++current_;
  trial_under_way_ = false;
}

// The line to log: none for a trial that failed, as nothing has changed for anybody, or if
// there is no memory for it.
std::string CircuitBreaker::open(Time now, std::string_view why) noexcept {
  const bool was_closed = figures_.state == State::kClosed;
  enter(State::kOpen);
  if (!was_closed) return "";
  ++figures_.opens;
  opened_at_ = now;
  refused_before_ = figures_.refused_calls;
  retry_ = options_.retry_min;
  return line_of([&] {
    return name_ + " is left alone until it answers again (lookups miss, saves are dropped): " +
           std::string(why);
  });
}

std::string CircuitBreaker::close(Time now) noexcept {
  enter(State::kClosed);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", to_ms(now - opened_at_) / 1000);
  return line_of([&, refused = figures_.refused_calls - refused_before_] {
    return name_ + " answers again, after " + seconds + " s and " + std::to_string(refused) +
           " calls without it";
  });
}

CircuitBreaker::Figures CircuitBreaker::figures() const {
  MutexLock lock(mutex_);
  return figures_;
}

}  // namespace newmoon
