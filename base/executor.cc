#include "base/executor.h"

#include <pthread.h>

#include <utility>

namespace newmoon {

ThreadExecutor::ThreadExecutor(std::string name)
    : thread_([this, name = std::move(name)] { run(name); }) {}

ThreadExecutor::~ThreadExecutor() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadExecutor::post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void ThreadExecutor::run(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) changed_.wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (const Status ran = contain(task); !ran) thrown_.add(ran.error());
  }
}

}  // namespace newmoon
