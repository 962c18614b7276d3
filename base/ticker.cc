#include "base/ticker.h"

#include <pthread.h>

#include <utility>

namespace newmoon {

Ticker::Ticker(std::string name, Duration interval, std::function<void()> tick)
    : interval_(interval),
      tick_(std::move(tick)),
      thread_([this, name = std::move(name)] { run(name); }) {}

Ticker::~Ticker() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Ticker::run(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  while (true) {
    if (const Status ticked = contain(tick_); !ticked) thrown_.add(ticked.error());
    MutexLock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + interval_;
    while (!stopping_) {
      if (changed_.wait_until(mutex_, until) == std::cv_status::timeout) break;
    }
    if (stopping_) return;
  }
}

}  // namespace newmoon
