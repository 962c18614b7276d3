// A MooncakeStore over a client that does as told.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>

#include "store/mooncake/mooncake_store.h"
#include "store/mooncake/testing/fake_client.h"
#include "store/testing/blocks.h"
#include "store/testing/manual_time.h"

namespace newmoon::testing {

Code code_of(const auto& result) { return result ? Code::kInternal : result.error().code; }

class MooncakeStoreTest : public ::testing::Test {
 protected:
  MooncakeStoreTest() {
    config_.master_server_address = "127.0.0.1:1";
    config_.local_buffer_bytes = 4 << 20;
    options_.timeout = std::chrono::seconds(10);
  }
  ~MooncakeStoreTest() override { fake_.let_go(); }

  MooncakeStore& store() {
    if (store_ == nullptr) {
      auto opened =
          MooncakeStore::open_with([this] { return make_client(); }, config_, *clock_, options_);
      if (!opened) throw std::runtime_error(opened.error().message);
      store_ = std::move(*opened);
    }
    return *store_;
  }
  std::unique_ptr<MooncakeClient> make_client() {
    return std::make_unique<FakeMooncakeClient>(shared_fake_);
  }
  // Of a store not opened yet: a call that hangs in the wheel makes its caller wait no longer
  // than that, and only such a call is ever late.
  void impatient() {
    clock_ = &wheel_clock_;
    options_.timeout = std::chrono::milliseconds(100);
  }
  // Where a get was to put its bytes that ended at its deadline: the wheel hangs from now on.
  TestBlock get_while_the_wheel_hangs() {
    store_.reset();
    impatient();
    store();
    fake_.hold();
    TestBlock into(100, 12345);
    EXPECT_EQ(code_of(get_one(*store_, key_of(1, 1), into)), Code::kDeadline);
    return into;
  }

  MooncakeConfig config_;
  MooncakeOptions options_;
  const std::shared_ptr<FakeMooncake> shared_fake_ = std::make_shared<FakeMooncake>();
  FakeMooncake& fake_ = *shared_fake_;
  SystemClock system_clock_;
  WheelClock wheel_clock_{fake_};
  ManualClock manual_clock_;
  Clock* clock_ = &system_clock_;
  std::unique_ptr<MooncakeStore> store_;
};

}  // namespace newmoon::testing
