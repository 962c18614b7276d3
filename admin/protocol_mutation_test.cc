// The decoders over 200,000 damaged messages, the same ones in every run. The fuzz
// targets in admin/fuzz search further; this is what every test run can afford.
#include <gtest/gtest.h>

#include "admin/fuzz/decoders.h"
#include "base/random.h"

namespace newmoon {
namespace {

constexpr int kInputs = 100'000;  // of requests, and of replies

LookupRequest make_lookup() {
  LookupRequest lookup;
  lookup.scope = ScopeId{{1, 2, 3}};
  lookup.epoch = 7;
  lookup.num_tokens = 50;
  lookup.block_hashes = {BlockHash(Bytes(32, 1)), BlockHash(Bytes(32, 2)), BlockHash(Bytes(32, 3))};
  return lookup;
}

std::vector<Frames> valid_requests() {
  return {
      encode_request(1, Request{.body = make_lookup()}),
      encode_request(2, Request{.body = FenceRequest{.epoch = 300}}),
      encode_request(3, Request{.body = ResetRequest{.epoch = 5, .mode = ResetMode::kRemoveAll}}),
      encode_request(4, Request{.body = PingRequest()}),
      encode_request(5, Request{.body = DrainRequest()}),
      encode_request(6, Request{.body = StatsRequest()}),
      encode_request(7, Request{.body = ScopesRequest{.after = ScopeId{{4}}}}),
      encode_request(8, Request{.body = PurgeRequest{{.scope = ScopeId{{5}}, .name_space = {}}}}),
      encode_request(9, Request{.body = PurgeRequest{{.scope = {}, .name_space = "run-7"}}}),
      encode_request(10, Request{.body = WeightsWrittenRequest()}),
      encode_foreign_lookup(ForeignDialect::kVllm, make_lookup()),
      encode_foreign_lookup(ForeignDialect::kSeed, make_lookup()),
      encode_foreign_reset(),
  };
}

ScopesPage make_page() {
  return {.scopes = {{ScopeId{{1}}, "namespace=a", 5, 600, {"engine-1", "engine-2"}},
                     {ScopeId{{2}}, "", 0, 0, {}}},
          .more = true};
}

std::vector<Frames> valid_replies() {
  const ResetAck ack{.fence = {.floor = 70'000, .dropped_loads = 1}, .removed = 1ULL << 40};
  return {
      encode_reply(Request{.body = LookupRequest(), .request_id = 1}, 4096U),
      encode_reply(Request{.body = FenceRequest(), .request_id = 2}, ack.fence),
      encode_reply(Request{.body = ResetRequest(), .request_id = 3}, ack),
      encode_reply(Request{.body = LookupRequest(), .foreign = true}, 4096U),
      encode_reply(Request{.body = ResetRequest(), .foreign = true}, ack),
      encode_reply(Request{.body = StatsRequest(), .request_id = 6}, RankStats{.epoch = 7}),
      encode_reply(Request{.body = ScopesRequest(), .request_id = 7}, make_page()),
      encode_reply(Request{.body = PurgeRequest(), .request_id = 8}, PurgeAck{1, 2, 3}),
      encode_reply(Request{.body = WeightsWrittenRequest(), .request_id = 10}, ack.fence),
      encode_error(9, {Code::kBusy, "full"}),
      encode_error(std::nullopt, {Code::kBusy, "full"}),
  };
}

class Mutator {
 public:
  explicit Mutator(std::vector<Frames> corpus) : corpus_(std::move(corpus)) {}

  Frames next() {
    Frames frames = corpus_[random_.below(corpus_.size())];
    for (std::uint64_t i = random_.below(4) + 1; i > 0; --i) mutate(frames);
    return frames;
  }

 private:
  void mutate(Frames& frames) {
    if (frames.empty() || random_.chance(5)) {
      frames.push_back(any_frame());
      return;
    }
    const std::size_t at = random_.below(frames.size());
    if (random_.chance(5)) {
      frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (random_.chance(5)) {
      std::swap(frames[at], frames[random_.below(frames.size())]);
    } else if (random_.chance(10)) {
      frames[at] = any_frame();
    } else {
      mutate(frames[at]);
    }
  }
  void mutate(Bytes& frame) {
    const std::size_t at = frame.empty() ? 0 : random_.below(frame.size());
    const auto where = frame.begin() + static_cast<std::ptrdiff_t>(at);
    const auto byte = static_cast<std::uint8_t>(random_.next());
    const std::uint64_t kind = random_.below(4);
    if (frame.empty() || kind == 0) {
      frame.insert(where, byte);
    } else if (kind == 1) {
      frame.erase(where, random_.chance(30) ? frame.end() : where + 1);
    } else if (kind == 2) {
      *where ^= static_cast<std::uint8_t>(1U << (byte % 8));
    } else {
      *where = byte;
    }
  }
  Bytes any_frame() {
    const Frames& donor = corpus_[random_.below(corpus_.size())];
    return donor[random_.below(donor.size())];
  }

  std::vector<Frames> corpus_;
  SeededRandom random_{42};
};

// What was accepted must be sound: `check` aborts otherwise. The counts show that the
// mutations reach both sides of the decoder.
TEST(ProtocolMutationTest, DamagedRequestsAreRefusedOrSound) {
  Mutator mutator(valid_requests());
  int accepted = 0;
  for (int i = 0; i < kInputs; ++i) {
    const Frames frames = mutator.next();
    fuzz::check_request(frames);
    accepted += decode_request(frames, ProtocolLimits()).has_value();
  }
  EXPECT_GT(accepted, kInputs / 100);
  EXPECT_LT(accepted, kInputs / 2);
}

TEST(ProtocolMutationTest, DamagedRepliesAreRefusedOrSound) {
  Mutator mutator(valid_replies());
  int accepted = 0;
  for (int i = 0; i < kInputs; ++i) {
    const Frames frames = mutator.next();
    fuzz::check_reply(frames);
    accepted += decode_reply(frames, 0).has_value();
  }
  EXPECT_GT(accepted, kInputs / 100);
  EXPECT_LT(accepted, kInputs * 3 / 4);
}

TEST(ProtocolMutationTest, ValidMessagesPassTheChecksOfTheFuzzer) {
  for (const Frames& frames : valid_requests()) {
    EXPECT_TRUE(decode_request(frames, ProtocolLimits()));
    fuzz::check_request(frames);
  }
  for (const Frames& frames : valid_replies()) fuzz::check_reply(frames);
  EXPECT_EQ(fuzz::to_frames(*from_hex("0161006300ff0203")),
            (Frames{{0x61}, {}, {0x00, 0xff, 0x02, 0x03}}));
}

}  // namespace
}  // namespace newmoon
