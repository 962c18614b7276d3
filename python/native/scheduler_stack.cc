#include "python/native/scheduler_stack.h"

#include <utility>

#include "python/native/freed_memory.h"

namespace newmoon {

Result<std::unique_ptr<SchedulerStack>> SchedulerStack::start(SchedulerRole::Options options,
                                                              std::vector<std::string> endpoints) {
  keep_freed_memory();
  std::unique_ptr<SchedulerStack> stack(new SchedulerStack);
  Result<std::unique_ptr<ZmqClientTransport>> transport =
      ZmqClientTransport::connect(std::move(endpoints), stack->clock_);
  if (!transport) return std::unexpected(transport.error());
  stack->transport_ = std::move(*transport);
  stack->role_ = std::make_unique<SchedulerRole>(std::move(options), *stack->transport_,
                                                 stack->clock_, stack->random_);
  return stack;
}

}  // namespace newmoon
