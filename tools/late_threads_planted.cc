// What late_threads must find (late_threads_test.py): exits 1 if what it assumes of its other
// thread's speed does not hold.
#include <chrono>
#include <future>
#include <mutex>
#include <string_view>
#include <thread>

namespace {

using namespace std::chrono_literals;

// Counts to 20 in 20 ms.
class Counter {
 public:
  ~Counter() { thread_.join(); }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  void await_begin() { begun_.get_future().wait(); }
  void await_end() { ended_.get_future().wait(); }

 private:
  void run() {
    for (int i = 0; i < 20; ++i) {
      {
        const std::lock_guard lock(mutex_);
        ++count_;
      }
      if (i == 0) begun_.set_value();
      std::this_thread::sleep_for(1ms);
    }
    ended_.set_value();
  }

  std::mutex mutex_;
  int count_ = 0;
  std::promise<void> begun_;
  std::promise<void> ended_;
  std::thread thread_{[this] { run(); }};
};

bool holds(std::string_view program) {
  Counter counter;
  if (program == "begun") {
    std::this_thread::sleep_for(10ms);
    return counter.count() > 0;
  }
  counter.await_begin();
  if (program == "not-ended") return counter.count() < 20;
  counter.await_end();
  return counter.count() == 20;
}

}  // namespace

int main(int argc, char** argv) { return argc == 2 && holds(argv[1]) ? 0 : 1; }
