#include "engine/engine_loop.h"

#include <algorithm>
#include <utility>

namespace newmoon {
namespace {

// While only lookups, loads or saves are awaited: between two looks at them.
constexpr Duration kPollInterval = std::chrono::microseconds(200);
constexpr Duration kHousekeepingInterval = std::chrono::seconds(1);

void refuse(const RequestId& id, const EngineLoop::OutputFn& tell, const std::string& why) {
  RequestOutput output;
  output.id = id;
  output.finished = true;
  output.status = RequestStatus::kFinishedError;
  output.error = why;
  tell(std::move(output));
}

}  // namespace

EngineLoop::EngineLoop(EngineCore& core, ModelExecutor& executor, Clock& clock)
    : core_(core), executor_(executor), clock_(clock), thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() { stop(); }

void EngineLoop::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// --- ways in ---

bool EngineLoop::try_post(std::function<void(EngineCore&)> task) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  return true;
}

void EngineLoop::post(std::function<void(EngineCore&)> task) { (void)try_post(std::move(task)); }

void EngineLoop::add_request(RequestInput input, OutputFn on_output) {
  const RequestId id = input.id;
  const bool posted = try_post([this, input = std::move(input), on_output](EngineCore& core) {
    const RequestId name = input.id;
    // Before: one that is taken in and has nobody to tell would be waited for in vain.
    const auto [callback, is_new] = callbacks_.try_emplace(name, on_output);
    const Status status =
        is_new ? contain([&] { return core.add_request(input); })
               : fail(Code::kBadRequest, "request " + name + ": its end has not been told yet");
    if (status) return;
    if (is_new) callbacks_.erase(callback);
    refuse(name, on_output, to_string(status.error()));
  });
  if (!posted) refuse(id, on_output, "unavailable: the engine has stopped");
}

void EngineLoop::abort_requests(std::vector<RequestId> ids) {
  post([ids = std::move(ids)](EngineCore& core) { core.abort_requests(ids); });
}

Result<PauseAnswer> EngineLoop::pause_generation(PauseMode mode, bool clear_cache,
                                                 Duration timeout) {
  const Time deadline = clock_.now() + timeout;
  return ask<PauseAnswer>(
      [mode, clear_cache, deadline](EngineCore& core, std::function<void(PauseAnswer)> done) {
        core.pause_generation(mode, clear_cache, deadline, std::move(done));
      },
      timeout);
}

Result<SleepAnswer> EngineLoop::sleep(int level, PauseMode mode, Duration timeout) {
  const Time deadline = clock_.now() + timeout;
  return ask<SleepAnswer>(
      [level, mode, deadline](EngineCore& core, std::function<void(SleepAnswer)> done) {
        core.sleep(level, mode, deadline, std::move(done));
      },
      timeout);
}

Result<CacheResetAnswer> EngineLoop::reset_prefix_cache(bool reset_running_requests,
                                                        bool reset_connector, Duration timeout,
                                                        bool keep_verified) {
  const Time deadline = clock_.now() + timeout;
  return call<CacheResetAnswer>(
      [=](EngineCore& core) {
        return core.reset_prefix_cache(reset_running_requests, reset_connector, deadline,
                                       keep_verified);
      },
      timeout);
}

// --- the thread ---

void EngineLoop::run() {
  if (const Status ran = contain([this] { return run_until_stopped(); }); !ran) {
    give_up(ran.error());
  }
}

// A step or a fence threw half-way. What the core holds now is nobody's guess, so it is not stepped
// again; what is waiting for it must hear so.
void EngineLoop::give_up(const Error& why) {
  thrown_.add(why);
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  (void)run_tasks();
  for (const auto& [id, tell] : std::exchange(callbacks_, {})) {
    (void)contain([&] { refuse(id, tell, "the engine has stopped: " + to_string(why)); });
  }
}

Status EngineLoop::run_until_stopped() {
  while (true) {
    if (Status ran = run_tasks(); !ran) return ran;
    {
      MutexLock lock(mutex_);
      if (stopping_) break;
    }
    core_.housekeep();
    const std::uint64_t steps_before = core_.scheduler().last_step_id();
    std::vector<RequestOutput> outputs = core_.step();
    const bool moved =
        core_.scheduler().last_step_id() != steps_before && core_.scheduler().num_running() > 0;
    const bool idle = outputs.empty() && !moved;
    deliver(std::move(outputs));
    if (idle) wait_for_work();
  }
  // What was taken in before the stop is owed an end; nothing is taken in any more.
  if (Status ran = run_tasks(); !ran) return ran;
  core_.abort_requests({});
  deliver(core_.step());
  return {};
}

// An error: the core is not to be stepped again. What else a task throws is its own loss.
Status EngineLoop::run_tasks() {
  std::deque<std::function<void(EngineCore&)>> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) {
    if (const Status ran = contain([&] { task(core_); }); !ran) thrown_.add(ran.error());
  }
  if (!core_.scheduler().fence_half_done()) return {};
  return fail(Code::kBusy, "out of memory in the middle of a fence");
}

// Steps in flight end in the executor, tasks come here; both are looked at often.
void EngineLoop::wait_for_work() {
  if (core_.scheduler().steps_in_flight() > 0) {
    executor_.wait(clock_.now() + kPollInterval);
    return;
  }
  const bool has_work = core_.has_work();
  MutexLock lock(mutex_);
  if (!tasks_.empty() || stopping_) return;
  changed_.wait_for(mutex_, has_work ? kPollInterval : kHousekeepingInterval);
}

void EngineLoop::deliver(std::vector<RequestOutput> outputs) {
  for (RequestOutput& output : outputs) {
    const auto found = callbacks_.find(output.id);
    if (found == callbacks_.end()) continue;
    const OutputFn callback = output.finished ? std::move(found->second) : found->second;
    if (output.finished) callbacks_.erase(found);
    if (const Status told = contain([&] { callback(std::move(output)); }); !told) {
      thrown_.add(told.error());
    }
  }
}

}  // namespace newmoon
