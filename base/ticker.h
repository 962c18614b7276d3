// Calls a function again and again on a thread of its own.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/contain.h"
#include "base/thread_annotations.h"

namespace newmoon {

class Ticker {
 public:
  // `tick` runs at once, and then `interval` after each end of it. `name` shows in
  // debuggers and `top -H` (15 characters at most).
  Ticker(std::string name, Duration interval, std::function<void()> tick);
  // Waits for the tick under way.
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void run(const std::string& name);

  const Duration interval_;
  const std::function<void()> tick_;
  ErrorCounter thrown_{"ticker"};
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ NM_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace newmoon
