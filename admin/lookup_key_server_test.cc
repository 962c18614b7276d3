// Over real sockets: every message is answered, and nothing stops the server.
#include "admin/lookup_key_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "admin/lookup_key_client.h"
#include "admin/msgpack_map.h"
#include "admin/testing/fake_backend.h"
#include "base/log.h"
#include "base/testing/raw_zmq_socket.h"
#include "base/testing/temp_dir.h"
#include "base/zmq_transport.h"

namespace newmoon {
namespace {

using namespace std::chrono_literals;
using newmoon::testing::FakeBackend;
using newmoon::testing::RawZmqSocket;
using newmoon::testing::TempDir;
using ::testing::ElementsAre;

BlockHash numbered_hash(std::uint32_t number) {
  Bytes bytes(32, 0xab);
  store_be(bytes.data(), number);
  return BlockHash(bytes);
}

LookupRequest lookup_of(std::uint32_t blocks) {
  LookupRequest request;
  request.scope = ScopeId{{9}};
  request.epoch = 1;
  request.num_tokens = blocks * 16 + 1;
  for (std::uint32_t i = 0; i < blocks; ++i) request.block_hashes.push_back(numbered_hash(i));
  return request;
}

// One rank: backend, two lanes, server and socket.
class TestRank {
 public:
  explicit TestRank(const std::string& endpoint, LookupKeyServer::Options options = {})
      : endpoint_(endpoint), server_(backend, options, quick_, bulk_) {
    start();
  }

  void start() {
    auto zmq = ZmqServer::start(endpoint_, [this](const Frames& message, ReplyFn reply) {
      server_.handle(message, std::move(reply));
    });
    ASSERT_TRUE(zmq.has_value()) << zmq.error().message;
    zmq_ = std::move(*zmq);
  }
  void stop() { zmq_->stop(); }

  void hold(std::uint32_t blocks) {
    for (std::uint32_t i = 0; i < blocks; ++i) backend.present.insert(numbered_hash(i).hex());
  }
  LookupServerStats stats() const { return server_.stats(); }

  FakeBackend backend;

 private:
  std::string endpoint_;
  ThreadExecutor quick_{"quick"};
  ThreadExecutor bulk_{"bulk"};
  LookupKeyServer server_;
  std::unique_ptr<ZmqServer> zmq_;
};

class LookupKeyServerTest : public ::testing::Test {
 protected:
  LookupKeyServerTest() {
    set_log_sink([](auto...) {});
  }
  ~LookupKeyServerTest() override { set_log_sink({}); }

  std::unique_ptr<ZmqClientTransport> connect(std::vector<std::string> endpoints) {
    return *ZmqClientTransport::connect(std::move(endpoints), clock_);
  }
  Time in(Duration delay) const { return clock_.now() + delay; }
  // Polls as an engine's loop does.
  Result<std::uint32_t> await(LookupKeyClient& client, ClientTransport& transport,
                              const std::string& id, const LookupRequest& request) {
    const Time deadline = in(10s);
    while (clock_.now() < deadline) {
      if (auto answer = client.lookup(id, request)) return *answer;
      transport.wait(in(10ms));
    }
    return fail(Code::kDeadline, "the test waited in vain");
  }

  TempDir dir_;
  SystemClock clock_;
  const std::string endpoint_ = dir_.endpoint("rank0");
};

TEST_F(LookupKeyServerTest, AnswersTheVllmDialectByteForByte) {
  TestRank rank(endpoint_);
  rank.hold(2);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  Bytes two;
  append(two, numbered_hash(0).bytes());
  append(two, numbered_hash(1).bytes());
  const Bytes lookup = *from_hex("6c6f6f6b7570");
  const Bytes hash_len = *from_hex("0020");
  const auto hit = [](std::string_view hex) { return Frames{*from_hex(hex)}; };

  EXPECT_EQ(req.ask({lookup, *from_hex("00000021"), hash_len, two}), hit("00000020"));
  EXPECT_EQ(req.ask({lookup, *from_hex("00000021"), hash_len, two, {0x01}}), hit("00000020"));
  // The last token must be computed.
  EXPECT_EQ(req.ask({lookup, *from_hex("00000020"), hash_len, two}), hit("00000010"));
  // More hashes than tokens.
  EXPECT_EQ(req.ask({lookup, *from_hex("00000011"), hash_len, two}), hit("00000010"));
  // A miss after the first, and no hashes at all.
  Bytes broken = two;
  broken.back() ^= 1;
  EXPECT_EQ(req.ask({lookup, *from_hex("00000021"), hash_len, broken}), hit("00000010"));
  EXPECT_EQ(req.ask({lookup, *from_hex("00000021"), *from_hex("0000"), {}}), hit("00000000"));

  EXPECT_EQ(req.ask({*from_hex("7265736574")}), hit("01"));
  EXPECT_EQ(req.ask({lookup, *from_hex("00000021"), hash_len, two}), hit("00000000"));
  EXPECT_EQ(rank.stats().bad_requests, 0U);
  EXPECT_EQ(rank.stats().foreign_requests, 8U);
}

// On both threads: the socket's, where a fence runs, and the lane's of a lookup.
TEST_F(LookupKeyServerTest, AnswersThoughTheBackendHasNoMemory) {
  TestRank rank(endpoint_);
  rank.hold(2);
  const auto transport = connect({endpoint_});
  LookupKeyClient client(*transport, clock_, {.lookup_timeout = 10s, .foreign = {}});
  rank.backend.out_of_memory = true;
  const Result<std::uint32_t> busy = await(client, *transport, "a", lookup_of(2));
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, Code::kBusy);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  EXPECT_EQ(req.ask({*from_hex("7265736574")}), (Frames{{0}}));
  EXPECT_EQ(rank.stats().failed_requests, 2u);
  rank.backend.out_of_memory = false;
  EXPECT_EQ(await(client, *transport, "b", lookup_of(2)), 32u);
  EXPECT_EQ(req.ask({*from_hex("7265736574")}), (Frames{{1}}));
}

TEST_F(LookupKeyServerTest, AnswersTheSeedDialectByteForByte) {
  TestRank rank(endpoint_);
  rank.hold(3);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  const Bytes list =
      encode_msgpack_strings({numbered_hash(0).hex(), numbered_hash(1).hex(), "ffff"});
  EXPECT_EQ(req.ask({*from_hex("6c6f6f6b7570"), *from_hex("00000080"), list}),
            Frames{*from_hex("00000020")});
  EXPECT_EQ(req.ask({*from_hex("7265736574")}), Frames{*from_hex("01")});
  EXPECT_EQ(req.ask({*from_hex("6c6f6f6b7570"), *from_hex("00000080"), list}),
            Frames{*from_hex("00000000")});
}

TEST_F(LookupKeyServerTest, SaysNoInUpstreamsWordsWhenTheBackendFails) {
  TestRank rank(endpoint_);
  rank.hold(2);
  rank.backend.lookup_error = Error{Code::kUnavailable, "the store is gone"};
  rank.backend.reset_error = Error{Code::kUnavailable, "the store is gone"};
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  EXPECT_EQ(req.ask(encode_foreign_lookup(ForeignDialect::kVllm, lookup_of(2))),
            Frames{*from_hex("00000000")});
  EXPECT_EQ(req.ask(encode_foreign_reset()), Frames{{0x00}});
  const auto answer = req.ask(encode_request(5, Request{.body = lookup_of(2)}));
  const auto reply = decode_reply(*answer, 0);
  ASSERT_TRUE(reply && !reply->body);
  EXPECT_EQ(reply->request_id, 5U);
  EXPECT_EQ(reply->body.error().message, "the store is gone");
}

// Each must be answered with RESP_ERR, within the patience of the socket.
std::vector<Frames> malformed_messages() {
  const Bytes lookup = to_bytes(LOOKUP_MSG);
  const Bytes tokens = *from_hex("00000021");
  const Bytes hash_len = *from_hex("0020");
  const Frames own = encode_request(1, Request{.body = lookup_of(2)});
  std::vector<Frames> messages = {
      {{}},                                                  // an empty frame
      {{}, {}, {}},                                          //
      {to_bytes("unheard")},                                 // unknown tags
      {to_bytes("LOOKUP"), tokens, hash_len, Bytes(64)},     //
      {Bytes(10'000'000, 0x5a)},                             // noise
      {lookup},                                              // missing frames
      {lookup, tokens},                                      //
      {lookup, tokens, hash_len},                            //
      {lookup, tokens, hash_len, Bytes(64), {}, {}},         // surplus frames
      {lookup, Bytes(64, 0xff), hash_len, Bytes(64)},        // wrong sizes
      {lookup, {}, hash_len, Bytes(64)},                     //
      {lookup, tokens, hash_len, Bytes(63)},                 //
      {lookup, tokens, {0, 0}, Bytes(64)},                   //
      {lookup, tokens, {0xff, 0xff}, Bytes(65535)},          //
      {lookup, tokens, Bytes(10'000'000, 0xff)},             // noise for msgpack
      {lookup, tokens, Bytes(10'000'000, 0x91)},             // deep msgpack
      {lookup, tokens, *from_hex("ddffffffff")},             // huge msgpack
      {lookup, tokens, *from_hex("dbffffffff")},             //
      {lookup, tokens, *from_hex("91a27a7a")},               // no hex
      {to_bytes(RESET_MSG), to_bytes("junk"), Bytes(1000)},  // reset with junk frames
      {own[0]},
      {own[0], own[1]},
      {own[0], {}, own[2]},
      {own[0], own[1], Bytes(10'000'000, 0x81)},
      {own[0], own[1], *from_hex("dfffffffff")},
      {own[0], own[1], own[2], own[2]},
  };
  return messages;
}

TEST_F(LookupKeyServerTest, EveryMalformedMessageIsAnsweredAndNoneStopsTheServer) {
  TestRank rank(endpoint_);
  rank.hold(2);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  RawZmqSocket dealer(ZMQ_DEALER, endpoint_);
  const std::vector<Frames> messages = malformed_messages();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto answer = req.ask(messages[i]);
    ASSERT_TRUE(answer) << "message " << i << " was not answered";
    EXPECT_EQ(as_text(answer->at(0)), RESP_ERR) << "message " << i;
  }
  EXPECT_EQ(dealer.ask({{}}), (Frames{{}, {0}}));  // an empty message: the delimiter alone
  EXPECT_EQ(rank.stats().bad_requests, messages.size() + 1);
  EXPECT_EQ(req.ask(encode_foreign_lookup(ForeignDialect::kVllm, lookup_of(2))),
            Frames{*from_hex("00000020")});
  rank.stop();
  EXPECT_TRUE(rank.backend.resets.empty());
}

TEST_F(LookupKeyServerTest, BadRequestsLeaveFewAndShortLogLines) {
  std::vector<std::string> lines;
  InlineExecutor inline_executor;
  FakeBackend backend;
  LookupKeyServer server(backend, {}, inline_executor, inline_executor);
  set_log_sink(
      [&](LogLevel, std::string_view, std::string_view line) { lines.emplace_back(line); });
  for (int i = 0; i < 1000; ++i) server.handle({Bytes(5000, 0x5a)}, [](Frames) {});
  EXPECT_EQ(server.stats().bad_requests, 1000U);
  EXPECT_EQ(lines.size(), 10U);  // 1, 2, 4, ... 512
  for (const std::string& line : lines) EXPECT_LE(line.size(), 300U);
}

TEST_F(LookupKeyServerTest, ABadRequestOfOursIsAnsweredWithItsId) {
  TestRank rank(endpoint_);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  Frames message = encode_request(77, Request{.body = PingRequest()});
  message[2] = to_bytes("junk");
  const auto answer = req.ask(message);
  ASSERT_TRUE(answer);
  EXPECT_EQ(peek_reply_id(*answer), 77U);
  EXPECT_EQ(decode_reply(*answer, 3)->body.error().code, Code::kBadRequest);
}

TEST_F(LookupKeyServerTest, QuickLookupsAreNotHeldUpByBulkOnes) {
  TestRank rank(endpoint_);
  rank.hold(64);
  rank.backend.held_blocks = 8192;
  const auto transport = connect({endpoint_});
  LookupKeyClient client(*transport, clock_, {.lookup_timeout = 60s});
  EXPECT_FALSE(client.lookup("bulk", lookup_of(8192)));
  // The bulk one cannot end before it is released below.
  EXPECT_EQ(await(client, *transport, "quick", lookup_of(64)), 64U * 16);
  EXPECT_EQ(client.pending_lookups(), 1U);
  EXPECT_TRUE(client.ping(in(10s)).all_ok());
  EXPECT_TRUE(client.reset({.epoch = 2}, in(10s)).all_ok());
  rank.backend.release_held_lookup();
  EXPECT_EQ(await(client, *transport, "bulk", lookup_of(8192)), 64U * 16);
}

TEST_F(LookupKeyServerTest, TooManyQueuedLookupsAreRefusedNotKept) {
  TestRank rank(endpoint_, {.queued_hashes_max = 9000});
  rank.backend.held_blocks = 8192;
  const auto transport = connect({endpoint_});
  LookupKeyClient client(*transport, clock_, {.lookup_timeout = 60s});
  EXPECT_FALSE(client.lookup("first", lookup_of(8192)));
  const auto second = await(client, *transport, "second", lookup_of(8192));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_EQ(rank.stats().busy_lookups, 1U);
  rank.backend.release_held_lookup();
  EXPECT_TRUE(await(client, *transport, "first", lookup_of(8192)));
  EXPECT_TRUE(await(client, *transport, "third", lookup_of(8192)));
}

TEST_F(LookupKeyServerTest, ServesSeveralClientsOfAllDialectsAtOnce) {
  TestRank rank(endpoint_);
  rank.hold(40);
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      RawZmqSocket req(ZMQ_REQ, endpoint_);
      const auto dialect = t % 2 == 0 ? ForeignDialect::kVllm : ForeignDialect::kSeed;
      Bytes expected;
      append_be<std::uint32_t>(expected, t * 10 * 16);
      for (int i = 0; i < 25; ++i) {
        right += req.ask(encode_foreign_lookup(dialect, lookup_of(t * 10))) == Frames{expected};
        req.ask({to_bytes("noise")});
      }
    });
  }
  const auto transport = connect({endpoint_});
  LookupKeyClient client(*transport, clock_, {.lookup_timeout = 60s});
  for (std::uint32_t i = 1; i <= 40; ++i) {
    EXPECT_EQ(await(client, *transport, std::to_string(i), lookup_of(i)), i * 16);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 100);
  EXPECT_EQ(rank.stats().bad_requests, 100U);
}

TEST_F(LookupKeyServerTest, FenceAndResetReachTheBackendOfEveryRank) {
  TestRank zero(endpoint_);
  TestRank one(dir_.endpoint("rank1"));
  zero.hold(3);
  one.backend.ack.dropped_saves = 4;
  const auto transport = connect({endpoint_, dir_.endpoint("rank1")});
  LookupKeyClient client(*transport, clock_, {});
  client.fence(6);
  auto answer = client.ping(in(10s));
  ASSERT_TRUE(answer.all_ok());
  EXPECT_EQ(answer.ranks[1].ack->fence.floor, 6U);
  EXPECT_EQ(answer.ranks[1].ack->fence.dropped_saves, 4U);
  answer = client.reset({.epoch = 7, .mode = ResetMode::kRemoveAll}, in(10s));
  ASSERT_TRUE(answer.all_ok());
  EXPECT_EQ(answer.ranks[0].ack->removed, 3U);
  EXPECT_EQ(answer.ranks[0].ack->remaining, 0U);
  zero.stop();
  one.stop();
  EXPECT_EQ(zero.backend.resets.size(), 2U);
  ASSERT_EQ(one.backend.resets.size(), 1U);
  EXPECT_FALSE(one.backend.resets[0].remove);
}

TEST_F(LookupKeyServerTest, AClientSurvivesAServerThatDiesAndReturns) {
  TestRank zero(endpoint_);
  TestRank one(dir_.endpoint("rank1"));
  const auto transport = connect({endpoint_, dir_.endpoint("rank1")});
  LookupKeyClient client(*transport, clock_, {.lookup_timeout = 50ms, .probe_interval = 20ms});
  ASSERT_TRUE(client.ping(in(10s)).all_ok());
  one.stop();
  auto answer = client.reset({.epoch = 2}, in(3s));  // which the living one answers in
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(1));
  EXPECT_TRUE(answer.ranks[0].ack.has_value());
  one.start();
  const Time deadline = in(60s);
  while (!client.reset({.epoch = 3}, in(1s)).all_ok() && clock_.now() < deadline) {
    transport->wait(in(10ms));
    client.poll();
  }
  answer = client.reset({.epoch = 4}, in(10s));
  EXPECT_TRUE(answer.all_ok());
  EXPECT_EQ(answer.ranks[1].ack->fence.floor, 4U);
}

TEST_F(LookupKeyServerTest, ALateAnswerIsNeverTakenForANewOne) {
  TestRank rank(endpoint_);
  rank.hold(64);
  rank.backend.held_blocks = 64;
  const auto transport = connect({endpoint_});
  LookupKeyClient client(*transport, clock_, {.lookup_timeout = 200ms, .probe_interval = 20ms});
  const auto timed_out = await(client, *transport, "a", lookup_of(64));
  ASSERT_FALSE(timed_out);
  EXPECT_EQ(timed_out.error().code, Code::kDeadline);
  client.discard("a");
  rank.backend.release_held_lookup();
  // The sign of life of the late answer, then the right answer to the new question.
  Result<std::uint32_t> answer = fail(Code::kUnavailable, "");
  for (int i = 0; i < 1000 && !answer; ++i) {
    client.discard("a");
    transport->wait(in(10ms));
    answer = await(client, *transport, "a", lookup_of(3));
  }
  EXPECT_EQ(answer, 3U * 16);
}

// ---- The seed's tests of the lookup client, against real sockets ----

class ScriptedServer {
 public:
  ScriptedServer(const std::string& endpoint, Frames answer) {
    auto zmq = ZmqServer::start(endpoint, [this, answer](Frames message, const ReplyFn& reply) {
      {
        std::lock_guard lock(mutex_);
        received_.push_back(std::move(message));
      }
      reply(answer);
    });
    EXPECT_TRUE(zmq.has_value());
    zmq_ = std::move(*zmq);
  }
  std::vector<Frames> received() {
    std::lock_guard lock(mutex_);
    return received_;
  }

 private:
  std::mutex mutex_;
  std::vector<Frames> received_;
  std::unique_ptr<ZmqServer> zmq_;
};

TEST_F(LookupKeyServerTest, test_lookup_key_client_lookup_prepends_typed_tag) {
  ScriptedServer server(endpoint_, {{0, 0, 0, 5}});
  const auto transport = connect({endpoint_});
  LookupKeyClient client(*transport, clock_,
                         {.lookup_timeout = 10s, .foreign = ForeignDialect::kSeed});
  LookupRequest request = lookup_of(2);
  request.num_tokens = 128;
  EXPECT_EQ(await(client, *transport, "req", request), 5U);
  ASSERT_EQ(server.received().size(), 1U);
  EXPECT_EQ(as_text(server.received()[0][0]), LOOKUP_MSG);
  EXPECT_EQ(server.received()[0][1], (Bytes{0, 0, 0, 128}));
}

TEST_F(LookupKeyServerTest, test_lookup_key_client_reset_uses_typed_protocol) {
  for (const bool ok : {true, false}) {
    ScriptedServer server(endpoint_, {to_bytes(ok ? RESP_OK : RESP_ERR)});
    const auto transport = connect({endpoint_});
    LookupKeyClient client(*transport, clock_, {.foreign = ForeignDialect::kVllm});
    const auto answer = client.reset({.epoch = 1, .mode = ResetMode::kRemoveAll}, in(10s));
    EXPECT_EQ(answer.all_ok(), ok);
    EXPECT_EQ(server.received(), (std::vector<Frames>{{to_bytes(RESET_MSG)}}));
  }
}

// Runs what it takes at once.
class FullExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override {
    if (full) throw std::bad_alloc();
    task();
  }
  bool full = false;
};

TEST_F(LookupKeyServerTest, WhatFindsNoRoomInALaneGivesItsShareOfTheQueueBack) {
  FakeBackend backend;
  FullExecutor lane;
  LookupKeyServer server(backend, {.queued_hashes_max = 3, .queued_store_commands_max = 1}, lane,
                         lane);
  const auto ask = [&](const Request& request) {
    std::vector<Frames> replies;
    server.handle(encode_request(7, request), [&](Frames reply) { replies.push_back(reply); });
    EXPECT_EQ(replies.size(), 1u);
    return decode_reply(replies.at(0), request.body.index())->body;
  };
  for (const Request& request : {Request{.body = lookup_of(2)}, Request{.body = StatsRequest()}}) {
    lane.full = true;
    for (int i = 0; i < 3; ++i) {
      const auto refused = ask(request);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, Code::kBusy);
    }
    lane.full = false;
    EXPECT_TRUE(ask(request));
  }
  EXPECT_EQ(server.stats().busy_lookups, 0u);
}

}  // namespace
}  // namespace newmoon
