// A library to preload: holds threads up at random where they lock, wait, send and receive, as a
// busy machine does at bad moments. What a program then does wrong depends on which thread is
// faster. `./dev late` runs the tests with it.
//
//   LD_PRELOAD=liblate_threads.so NEWMOON_LATE_SEED=7 PROGRAM
//
// Each thread draws at its start how it fares: prompt, uneven (seldom held up, then for up to
// 50 ms) or slow (often, up to 5 ms), so that every pair of threads meets both ways round in some
// seed. A seed fixes the draws of a process's n-th thread, not the interleaving. A process's
// threads lose 20 s at most, so that bounds against hanging still hold.
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <type_traits>

namespace {

constexpr std::uint64_t kUnevenMaxMicros = 50'000;
constexpr std::uint64_t kSlowMaxMicros = 5'000;
constexpr std::uint64_t kLosableMicros = 20'000'000;

std::uint64_t seed = 0;  // 0: nobody is held up
std::atomic<std::uint64_t> threads = 0;
std::atomic<std::uint64_t> lost_micros = 0;

__attribute__((constructor)) void read_seed() {
  const char* text = std::getenv("NEWMOON_LATE_SEED");
  if (text != nullptr) seed = std::strtoull(text, nullptr, 10);
}

// The function that is called if this library is not there. Looked up late, because it may be
// called before this library's constructors have run.
template <class Function>
class Next {
 public:
  constexpr explicit Next(const char* name, const char* version = nullptr)
      : name_(name), version_(version) {}

  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    Function* function = found_.load(std::memory_order_relaxed);
    if (function == nullptr) {
      void* symbol =
          version_ != nullptr ? dlvsym(RTLD_NEXT, name_, version_) : dlsym(RTLD_NEXT, name_);
      function = reinterpret_cast<Function*>(symbol);
      found_.store(function, std::memory_order_relaxed);
    }
    return function(arguments...);
  }

 private:
  const char* name_;
  const char* version_;
  std::atomic<Function*> found_ = nullptr;
};

enum class Pace { kUnknown, kPrompt, kUneven, kSlow };

struct Thread {
  Pace pace = Pace::kUnknown;
  std::uint64_t random = 0;
};
// The model that needs no allocation on a thread's first use.
__attribute__((tls_model("initial-exec"))) thread_local Thread self;

std::uint64_t draw(std::uint64_t bound) {  // splitmix64
  std::uint64_t mixed = self.random += 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return (mixed ^ (mixed >> 31)) % bound;
}

// Short ones are as likely as long ones: they meet other races.
void lose_time(std::uint64_t max_micros) {
  const std::uint64_t micros = (max_micros >> draw(10)) * (50 + draw(51)) / 100;
  if (lost_micros.fetch_add(micros) > kLosableMicros) return;
  const int error = errno;
  const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(micros) * 1000};
  nanosleep(&time, nullptr);
  errno = error;
}

void draw_pace() {
  self.random = seed * 1'000'003 + threads.fetch_add(1);
  self.pace = static_cast<Pace>(1 + draw(3));
}

// A point at which the thread may be held up.
void point() {
  if (seed == 0) return;
  if (self.pace == Pace::kUnknown) draw_pace();
  if (self.pace == Pace::kUneven && draw(16) == 0) lose_time(kUnevenMaxMicros);
  if (self.pace == Pace::kSlow && draw(2) == 0) lose_time(kSlowMaxMicros);
}

// `call` with a point on either side.
template <class Call>
auto between_points(Call call) {
  point();
  const auto result = call();
  point();
  return result;
}

struct Start {
  void* (*routine)(void*);
  void* argument;
};

void* start_late(void* given) {
  const Start start = *static_cast<Start*>(given);
  std::free(given);
  point();
  if (self.pace != Pace::kPrompt && draw(2) == 0) lose_time(kUnevenMaxMicros);
  return start.routine(start.argument);
}

// Attributes of the C library's declarations, such as noexcept's, are no part of the type.
#pragma GCC diagnostic ignored "-Wignored-attributes"
#define NEXT(function, ...)                                                      \
  constinit Next<std::remove_pointer_t<decltype(&::function)>> next_##function { \
    #function __VA_OPT__(, ) __VA_ARGS__                                         \
  }
NEXT(pthread_create);
NEXT(pthread_mutex_lock);
NEXT(pthread_mutex_unlock);
// Without their version, dlsym finds those of an older condition variable.
NEXT(pthread_cond_wait, "GLIBC_2.3.2");
NEXT(pthread_cond_timedwait, "GLIBC_2.3.2");
NEXT(pthread_cond_clockwait);
NEXT(syscall);
NEXT(read);
NEXT(write);
NEXT(send);
NEXT(recv);
NEXT(poll);
NEXT(epoll_wait);

}  // namespace

extern "C" {

// malloc, because tests count or refuse what operator new gives.
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                   void* argument) {
  if (seed == 0) return next_pthread_create(thread, attributes, routine, argument);
  auto* start = static_cast<Start*>(std::malloc(sizeof(Start)));
  if (start == nullptr) return EAGAIN;
  *start = {.routine = routine, .argument = argument};
  const int error = next_pthread_create(thread, attributes, start_late, static_cast<void*>(start));
  if (error != 0) std::free(start);
  point();
  return error;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  point();
  return next_pthread_mutex_lock(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  const int error = next_pthread_mutex_unlock(mutex);
  point();
  return error;
}

int pthread_cond_wait(pthread_cond_t* changed, pthread_mutex_t* mutex) {
  return between_points([=] { return next_pthread_cond_wait(changed, mutex); });
}

int pthread_cond_timedwait(pthread_cond_t* changed, pthread_mutex_t* mutex, const timespec* until) {
  return between_points([=] { return next_pthread_cond_timedwait(changed, mutex, until); });
}

int pthread_cond_clockwait(pthread_cond_t* changed, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  return between_points([=] { return next_pthread_cond_clockwait(changed, mutex, clock, until); });
}

// How std::future and std::atomic wait. The kernel reads as many of the arguments as the call has.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  return between_points([&] { return next_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]); });
}

ssize_t read(int file, void* bytes, size_t size) {
  return between_points([=] { return next_read(file, bytes, size); });
}

ssize_t write(int file, const void* bytes, size_t size) {
  return between_points([=] { return next_write(file, bytes, size); });
}

ssize_t send(int socket, const void* bytes, size_t size, int flags) {
  return between_points([=] { return next_send(socket, bytes, size, flags); });
}

ssize_t recv(int socket, void* bytes, size_t size, int flags) {
  return between_points([=] { return next_recv(socket, bytes, size, flags); });
}

int poll(pollfd* files, nfds_t count, int timeout) {
  return between_points([=] { return next_poll(files, count, timeout); });
}

int epoll_wait(int epoll, epoll_event* events, int max, int timeout) {
  return between_points([=] { return next_epoll_wait(epoll, events, max, timeout); });
}

}  // extern "C"
