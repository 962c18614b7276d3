// A mutex that clang's thread-safety analysis understands. gcc ignores the
// annotations; `./dev lint` checks them with clang.
#pragma once

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

// Also a BasicLockable, so that std::condition_variable_any waits on it.
class NM_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() NM_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() NM_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
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

}  // namespace newmoon
