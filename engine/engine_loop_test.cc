#include "engine/engine_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "base/testing/out_of_memory.h"
#include "engine/local_executor.h"
#include "engine/testing/held_executor.h"
#include "model/test_model_runner.h"

namespace newmoon {
namespace {

using namespace std::chrono_literals;
using newmoon::testing::HeldExecutor;

class EngineLoopTest : public ::testing::Test {
 protected:
  EngineLoopTest() {
    EXPECT_TRUE(core_.start());
    loop_.emplace(core_, executor_, clock_);
  }

  RequestInput input(const RequestId& id, std::uint32_t max_tokens) {
    RequestInput input;
    input.id = id;
    input.prompt = {1, 2, 3, 4, 5};
    input.max_tokens = max_tokens;
    return input;
  }
  // Returns once the loop stands still inside a task; what is posted from then on runs together,
  // after `release`.
  void hold_loop(std::promise<void>& release) {
    const auto begun = std::make_shared<std::promise<void>>();
    loop_->post([begun, held = release.get_future().share()](EngineCore&) {
      begun->set_value();
      held.wait();
    });
    begun->get_future().wait();
  }
  // The whole output, once it has finished.
  struct Generation {
    std::vector<Token> tokens;
    RequestOutput last;
  };
  // While the loop is held and stop() has been called: returns once requests are refused. Those
  // taken in before that are added to `taken`.
  void await_stop(std::vector<std::future<Generation>>& taken) {
    RequestStatus last = RequestStatus::kRunning;
    for (int i = 0; last != RequestStatus::kFinishedError; ++i) {
      taken.push_back(generate(input("r" + std::to_string(i), 240)));
      if (taken.back().wait_for(1ms) != std::future_status::ready) continue;
      last = taken.back().get().last.status;
      taken.pop_back();
    }
  }
  // `on_first` is called on the loop's thread with the first output: what it posts runs before
  // the next step, so while the request runs.
  std::future<Generation> generate(RequestInput input, std::function<void()> on_first = {}) {
    auto promise = std::make_shared<std::promise<Generation>>();
    auto so_far = std::make_shared<Generation>();
    loop_->add_request(std::move(input), [=](RequestOutput output) {
      if (on_first && so_far->tokens.empty()) on_first();
      for (const SampledToken& token : output.tokens) so_far->tokens.push_back(token.token);
      if (!output.finished) return;
      so_far->last = std::move(output);
      promise->set_value(*so_far);
    });
    return promise->get_future();
  }

  SystemClock clock_;
  TestModelRunner::Options model_;
  std::unique_ptr<KvArena> arena_ = *KvArena::create(TestModelRunner::kv_layout(model_), 256);
  TestModelRunner runner_{model_, *arena_};
  Fence fence_{{.name_space = "", .model = "m", .layout = "l", .incarnation = {}}};
  BlockPool pool_{{.block_count = 256, .block_size = model_.block_size}, fence_.epoch()};
  BlockHasher hasher_{HashAlgo::kSha256Cbor, model_.block_size, "0"};
  LocalExecutor executor_{
      {.runner = runner_, .workers = {}, .arena = arena_.get(), .clock = clock_}};
  EngineCore core_{{},
                   {.scheduler = {.info = runner_.info(),
                                  .hasher = hasher_,
                                  .fence = fence_,
                                  .pool = pool_,
                                  .connector = nullptr,
                                  .clock = clock_,
                                  .purge = {}},
                    .executor = executor_}};
  std::optional<EngineLoop> loop_;
};

TEST_F(EngineLoopTest, GeneratesForSeveralThreads) {
  std::vector<std::thread> threads;
  std::vector<Generation> results(6);
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back(
        [&, i] { results[i] = generate(input("r" + std::to_string(i), 20)).get(); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<Token> prompt = {1, 2, 3, 4, 5};
  for (const Generation& result : results) {
    EXPECT_EQ(result.tokens, TestModelRunner::cold_tokens(model_, 1, prompt, 20));
  }
}

TEST_F(EngineLoopTest, BadRequestEndsAtOnceWithItsError) {
  RequestInput bad = input("r", 5);
  bad.prompt.clear();
  const Generation result = generate(bad).get();
  EXPECT_EQ(result.last.status, RequestStatus::kFinishedError);
  EXPECT_THAT(result.last.error, ::testing::HasSubstr("prompt is empty"));
}

TEST_F(EngineLoopTest, PauseResetAndResumeWhileGenerating) {
  std::promise<void> frozen;  // with its first token, so that it runs however late this thread is
  std::future<Generation> running = generate(input("r", 200), [&] {
    loop_->post([&](EngineCore& core) {
      core.pause_generation(PauseMode::kKeep, false, clock_.now() + 5s, {});
      frozen.set_value();
    });
  });
  frozen.get_future().wait();
  const Result<PauseAnswer> paused = loop_->pause_generation(PauseMode::kKeep, true, 5s);
  ASSERT_TRUE(paused.has_value());
  EXPECT_TRUE(paused->complete);
  EXPECT_EQ(paused->reset->preempted, 1u);
  const Result<CacheResetAnswer> reset = loop_->reset_prefix_cache(true, true, 5s);
  ASSERT_TRUE(reset.has_value());
  EXPECT_TRUE(reset->success);
  const auto resumed =
      loop_->call<Status>([](EngineCore& core) { return core.resume_generation(); }, 5s);
  ASSERT_TRUE(resumed.has_value() && resumed->has_value());
  const std::vector<Token> prompt = {1, 2, 3, 4, 5};
  EXPECT_EQ(running.get().tokens, TestModelRunner::cold_tokens(model_, 1, prompt, 200));
}

TEST_F(EngineLoopTest, CallThatTheEngineDoesNotGetToEndsByItsDeadline) {
  std::promise<void> release;
  hold_loop(release);
  const auto answer = loop_->call<int>([](EngineCore&) { return 1; }, 1ms);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, Code::kDeadline);
  release.set_value();
}

// The request is taken in but not begun when the stop arrives.
TEST_F(EngineLoopTest, StopEndsARequestThatHasNotBegun) {
  std::promise<void> release;
  hold_loop(release);
  std::vector<std::future<Generation>> taken;
  taken.push_back(generate(input("first", 240)));
  std::thread stopper([this] { loop_->stop(); });  // lint: allow thread, stop blocks
  await_stop(taken);
  release.set_value();
  stopper.join();
  for (auto& request : taken) {
    EXPECT_EQ(request.get().last.status, RequestStatus::kFinishedAborted);
  }
}

TEST_F(EngineLoopTest, StopAbortsWhatRunsAndRefusesTheRest) {
  std::promise<void> begun;
  std::promise<void> release;
  std::promise<RequestStatus> ended;
  bool is_first = true;
  loop_->add_request(input("r", 240), [&, held = release.get_future().share()](auto output) {
    if (std::exchange(is_first, false)) {
      begun.set_value();
      held.wait();  // until the stop has arrived
    }
    if (output.finished) ended.set_value(output.status);
  });
  begun.get_future().wait();
  std::thread stopper([this] { loop_->stop(); });  // lint: allow thread, stop blocks
  std::vector<std::future<Generation>> taken;
  await_stop(taken);
  release.set_value();
  stopper.join();
  EXPECT_EQ(ended.get_future().get(), RequestStatus::kFinishedAborted);
  EXPECT_EQ(generate(input("late", 1)).get().last.status, RequestStatus::kFinishedError);
  EXPECT_EQ(loop_->pause_generation(PauseMode::kKeep, false, 1s).error().code, Code::kUnavailable);
}

TEST_F(EngineLoopTest, AStepThatThrowsEndsTheEngineAndItsRequestsButNotTheProcess) {
  loop_.reset();
  HeldExecutor held(executor_);
  held.out_of_memory = true;
  EngineCore core({}, {.scheduler = {.info = runner_.info(),
                                     .hasher = hasher_,
                                     .fence = fence_,
                                     .pool = pool_,
                                     .connector = nullptr,
                                     .clock = clock_,
                                     .purge = {}},
                       .executor = held});
  ASSERT_TRUE(core.start());
  loop_.emplace(core, held, clock_);
  const Generation generation = generate(input("a", 4)).get();
  EXPECT_EQ(generation.last.status, RequestStatus::kFinishedError);
  EXPECT_NE(generation.last.error.find("out of memory"), std::string::npos);
  EXPECT_EQ(generate(input("b", 4)).get().last.status, RequestStatus::kFinishedError);
  const auto reset = loop_->reset_prefix_cache(true, true, 10s);
  ASSERT_FALSE(reset);
  EXPECT_EQ(reset.error().code, Code::kUnavailable);
  loop_.reset();
}

TEST_F(EngineLoopTest, ACallbackOrATaskThatThrowsIsItsOwnLoss) {
  std::promise<void> thrown;
  loop_->add_request(input("a", 1), [&](RequestOutput output) {
    if (output.finished) thrown.set_value();
    throw std::runtime_error("planted");
  });
  thrown.get_future().wait();
  loop_->post([](EngineCore&) { throw std::runtime_error("planted"); });
  EXPECT_EQ(generate(input("b", 4)).get().tokens.size(), 4u);
}

TEST_F(EngineLoopTest, AQuestionThatThrowsIsAnsweredAtOnce) {
  const auto answer = loop_->call<Status>([](EngineCore&) -> Status { throw std::bad_alloc(); },
                                          std::chrono::hours(1));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kBusy);
}

// Requests that are left with KV that they must not read any more must not go on.
TEST_F(EngineLoopTest, AFenceThatThrowsHalfWayEndsTheEngine) {
  const auto fence = [this](EngineCore& core) {
    for (std::size_t count = 0; !core.scheduler().fence_half_done(); ++count) {
      const testing::NoMemoryAfter none(count);
      (void)contain([&] { core.reset_prefix_cache(true, true, clock_.now()); });
      if (!none.has_failed()) return;
    }
  };
  const Generation generation = generate(input("r", 240), [&] { loop_->post(fence); }).get();
  EXPECT_EQ(generation.last.status, RequestStatus::kFinishedError);
  EXPECT_THAT(generation.last.error, ::testing::HasSubstr("out of memory"));
  EXPECT_EQ(loop_->reset_prefix_cache(true, true, 10s).error().code, Code::kUnavailable);
}

TEST_F(EngineLoopTest, AnIdIsInUseUntilItsEndHasBeenTold) {
  std::promise<void> release;
  hold_loop(release);
  std::future<Generation> first = generate(input("r", 4));
  loop_->abort_requests({"r"});
  std::future<Generation> second = generate(input("r", 4));  // before the first has heard
  release.set_value();
  ASSERT_EQ(first.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(first.get().last.status, RequestStatus::kFinishedAborted);
  EXPECT_EQ(second.get().last.status, RequestStatus::kFinishedError);
  EXPECT_EQ(generate(input("r", 4)).get().tokens.size(), 4u);
}

}  // namespace
}  // namespace newmoon
