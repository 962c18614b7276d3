// EngineLoop: a thread that drives an EngineCore, and thread-safe ways in. Every
// blocking call ends by its deadline, whatever the engine or its ranks do (contract
// W5); a call that was given up on is carried out all the same if it had begun.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/contain.h"
#include "base/thread_annotations.h"
#include "engine/engine_core.h"

namespace newmoon {

class EngineLoop {
 public:
  // On the loop's thread, for each step that brought something for the request, the
  // last time with `finished`. Must not block, nor call the blocking methods below.
  using OutputFn = std::function<void(RequestOutput)>;

  // Starts the thread, which alone uses `core` and `executor` from here on.
  EngineLoop(EngineCore& core, ModelExecutor& executor, Clock& clock);
  // As stop().
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // --- any thread; none of these blocks ---
  // A request that cannot be taken ends at once, with status kFinishedError.
  void add_request(RequestInput input, OutputFn on_output);
  void abort_requests(std::vector<RequestId> ids);  // empty: all
  // Runs `task` on the loop's thread, between steps. Dropped if the loop has stopped.
  void post(std::function<void(EngineCore&)> task);

  // --- any thread but the loop's; these block for `timeout` at most ---
  // kDeadline: the engine did not get to it in time. kUnavailable: stopped. kBusy: memory ran
  // out on the way.
  Result<PauseAnswer> pause_generation(PauseMode mode, bool clear_cache, Duration timeout);
  Result<SleepAnswer> sleep(int level, PauseMode mode, Duration timeout);
  Result<CacheResetAnswer> reset_prefix_cache(bool reset_running_requests, bool reset_connector,
                                              Duration timeout, bool keep_verified = false);
  // Anything else: runs `call` on the loop's thread and returns what it returns.
  template <class T>
  Result<T> call(std::function<T(EngineCore&)> function, Duration timeout) {
    return ask<T>([function = std::move(function)](
                      EngineCore& core, std::function<void(T)> done) { done(function(core)); },
                  timeout);
  }

  // Ends the thread after the step under way; unfinished requests end as aborted. A step or a
  // fence that throws, which nobody can finish, does the same, and they end as kFinishedError.
  void stop();

 private:
  template <class T>
  struct Answer {
    // The first one counts.
    void give(Result<T> given) {
      {
        MutexLock lock(mutex);
        if (!value) value = std::move(given);
      }
      changed.notify_all();
    }

    Mutex mutex;
    CondVar changed;
    std::optional<Result<T>> value NM_GUARDED_BY(mutex);
  };

  template <class T>
  Result<T> ask(std::function<void(EngineCore&, std::function<void(T)>)> question,
                Duration timeout) {
    const auto answer = std::make_shared<Answer<T>>();
    const bool posted = try_post([this, answer, question = std::move(question)](EngineCore& core) {
      const Status asked = contain([&] {
        question(core,
                 [answer](T value) { answer->give(Result<T>(std::in_place, std::move(value))); });
      });
      if (asked) return;
      thrown_.add(asked.error());
      answer->give(Result<T>(std::unexpect, asked.error()));
    });
    if (!posted) return fail(Code::kUnavailable, "the engine has stopped");
    MutexLock lock(answer->mutex);
    const auto now = std::chrono::steady_clock::now();  // lint: allow clock, a caller waits
    const auto until = now + timeout + kAnswerGrace;
    while (!answer->value) {
      if (answer->changed.wait_until(answer->mutex, until) == std::cv_status::timeout) break;
    }
    if (!answer->value) return fail(Code::kDeadline, "the engine did not answer in time");
    return std::move(*answer->value);
  }

  // What has its own deadline in the core gets this much longer to say so.
  static constexpr Duration kAnswerGrace = std::chrono::milliseconds(500);

  bool try_post(std::function<void(EngineCore&)> task);
  void run();
  Status run_until_stopped();
  void give_up(const Error& why);
  Status run_tasks();
  void wait_for_work();
  void deliver(std::vector<RequestOutput> outputs);

  EngineCore& core_;
  ModelExecutor& executor_;
  Clock& clock_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void(EngineCore&)>> tasks_ NM_GUARDED_BY(mutex_);
  bool stopping_ NM_GUARDED_BY(mutex_) = false;

  std::unordered_map<RequestId, OutputFn> callbacks_;  // loop's thread
  ErrorCounter thrown_{"engine_loop"};
  std::thread thread_;  // lint: allow thread, the loop is one
};

}  // namespace newmoon
