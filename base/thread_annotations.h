// A mutex that clang's thread-safety analysis understands, and a condition variable for it.
// gcc ignores the annotations; `./dev lint` checks them with clang.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define NM_ATTRIBUTE(x) __attribute__((x))
#else
#define NM_ATTRIBUTE(x)
#endif

#define NM_GUARDED_BY(mutex) NM_ATTRIBUTE(guarded_by(mutex))
#define NM_REQUIRES(...) NM_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define NM_EXCLUDES(...) NM_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace newmoon {

class NM_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() NM_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() NM_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class NM_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) NM_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() NM_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// std::condition_variable_any has a lock of its own, which it holds while it wakes somebody up,
// who then waits once more, for that lock. For the same reason notify without the Mutex, where
// what is notified outlives it.
class CondVar {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  void wait(Mutex& mutex) NM_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    changed_.wait(held.lock);
  }
  template <class Rep, class Period>
  std::cv_status wait_for(Mutex& mutex, std::chrono::duration<Rep, Period> time)
      NM_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    return changed_.wait_for(held.lock, time);
  }
  template <class Clock, class Duration>
  std::cv_status wait_until(Mutex& mutex, std::chrono::time_point<Clock, Duration> time)
      NM_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    return changed_.wait_until(held.lock, time);
  }

 private:
  // The caller's lock, lent.
  struct Held {
    explicit Held(std::mutex& mutex) : lock(mutex, std::adopt_lock) {}
    ~Held() { lock.release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

}  // namespace newmoon
