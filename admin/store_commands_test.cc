// stats, scopes, purge and an operator's fence, from the client to the backend and back.
#include "admin/store_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "admin/lookup_key_client.h"
#include "admin/lookup_key_server.h"
#include "admin/msgpack_map.h"
#include "admin/store_codec.h"
#include "admin/testing/fake_backend.h"
#include "admin/testing/fake_transport.h"
#include "base/log.h"
#include "store/testing/manual_time.h"

namespace newmoon {
namespace {

using namespace std::chrono_literals;
using newmoon::testing::FakeBackend;
using newmoon::testing::FakeClock;
using newmoon::testing::FakeTransport;
using newmoon::testing::ManualExecutor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ScopeUsage usage_of(std::uint8_t number) {
  return {ScopeId{{number}},
          "scope " + std::to_string(number),
          number * 10u,
          number * 100u,
          {"engine-" + std::to_string(number)}};
}

// One rank's server at the other end of a client's transport.
class StoreCommands : public ::testing::Test {
 protected:
  StoreCommands() {
    set_log_sink([](auto...) {});
    transport_.on_send = [this](std::size_t peer, const Frames& frames) {
      server_.handle(frames, [this, peer](Frames reply) { transport_.deliver(peer, reply); });
      if (run_bulk_) run_bulk();
    };
  }
  ~StoreCommands() override { set_log_sink({}); }
  void run_bulk() {
    while (bulk_.run_one()) {
    }
  }
  Time in(Duration delay) const { return clock_.now() + delay; }
  ScopeSelection of_namespace(const std::string& name) { return {.scope = {}, .name_space = name}; }

  FakeClock clock_;
  FakeTransport transport_{clock_, 1};
  FakeBackend backend_;
  InlineExecutor quick_;
  ManualExecutor bulk_;
  LookupKeyServer server_{backend_, {.queued_store_commands_max = 2}, quick_, bulk_};
  LookupKeyClient client_{transport_, clock_, {}};
  bool run_bulk_ = true;
};

TEST_F(StoreCommands, StatsBringEveryFigureOfTheRankAndOfItsServer) {
  std::uint64_t next = 1;
  visit_figures(backend_.figures,
                [&](std::string_view, std::uint64_t& figure) { figure = next++; });
  backend_.figures.store_error = "unavailable: nobody there";
  const Result<RankStats> stats = client_.stats(0, in(1s));
  ASSERT_TRUE(stats) << stats.error().message;
  EXPECT_EQ(stats->server.requests, 1u);  // the server's own, not what the backend said
  EXPECT_EQ(stats->server.bad_requests, 0u);
  EXPECT_EQ(stats->store_error, "unavailable: nobody there");
  RankStats expected = backend_.figures;
  expected.server = stats->server;
  EXPECT_EQ(encode_map(*stats), encode_map(expected));
  EXPECT_EQ(stats->epoch, 1u);
  EXPECT_EQ(stats->store.recheck_left_s, 30u);
}

TEST_F(StoreCommands, ScopesArePagedAndComeInOrder) {
  for (const std::uint8_t number : {1, 2, 3}) backend_.scopes.push_back(usage_of(number));
  const auto scopes = client_.scopes(0, in(1s));
  ASSERT_TRUE(scopes);
  ASSERT_THAT(*scopes, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*scopes)[i].scope, backend_.scopes[i].scope);
    EXPECT_EQ((*scopes)[i].description, backend_.scopes[i].description);
    EXPECT_EQ((*scopes)[i].blocks, backend_.scopes[i].blocks);
    EXPECT_EQ((*scopes)[i].bytes, backend_.scopes[i].bytes);
    EXPECT_EQ((*scopes)[i].holders, backend_.scopes[i].holders);
  }
  EXPECT_EQ(server_.stats().requests, 3u);
  backend_.scopes.clear();
  EXPECT_THAT(*client_.scopes(0, in(1s)), IsEmpty());
}

TEST_F(StoreCommands, AServerThatTurnsPagesInCirclesIsFoundOut) {
  transport_.on_send = [this](std::size_t peer, const Frames& frames) {
    const Result<Request> request = decode_request(frames, ProtocolLimits());
    transport_.deliver(peer, encode_reply(*request, ScopesPage{{usage_of(1)}, true}));
  };
  EXPECT_EQ(client_.scopes(0, in(1s)).error().code, Code::kBadRequest);
}

TEST_F(StoreCommands, APageHasRoomForTheMostThatItMayHold) {
  ScopesPage page{.scopes = {}, .more = true};
  ScopeUsage usage = usage_of(1);
  usage.description = std::string(5000, 'd');
  usage.holders.assign(1000, std::string(300, 'h'));
  page.scopes.assign(kPageScopesMax, usage);
  const Bytes encoded = encode_map(page);
  Result<MsgpackMap> map = MsgpackMap::decode(encoded);
  ASSERT_TRUE(map);
  const Result<ScopesPage> decoded = decode_scopes_page(*map);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_TRUE(decoded->more);
  ASSERT_THAT(decoded->scopes, SizeIs(kPageScopesMax));
  EXPECT_THAT(decoded->scopes[255].holders, SizeIs(kPageHoldersMax));
  EXPECT_THAT(decoded->scopes[255].description, SizeIs(1024));
}

TEST_F(StoreCommands, PurgeTellsTheBackendWhatIsMeantAndBringsItsAnswer) {
  const Result<PurgeAck> ack = client_.purge(0, of_namespace("run-7"), in(1s));
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->scopes, 1u);
  EXPECT_EQ(ack->blocks, 2u);
  EXPECT_EQ(ack->bytes, 3u);
  ASSERT_TRUE(client_.purge(0, {.scope = ScopeId{{9}}, .name_space = {}}, in(1s)));
  ASSERT_THAT(backend_.purges, SizeIs(2));
  EXPECT_EQ(backend_.purges[0].name_space, "run-7");
  EXPECT_FALSE(backend_.purges[0].scope);
  EXPECT_EQ(backend_.purges[1].scope, ScopeId{{9}});
}

TEST_F(StoreCommands, ARefusalKeepsItsCodeAndItsWords) {
  backend_.purge_error = Error{Code::kBusy, "scope 09 is in use by engine-1"};
  const Result<PurgeAck> refused = client_.purge(0, of_namespace("run-7"), in(1s));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_EQ(refused.error().message, "scope 09 is in use by engine-1");
}

TEST_F(StoreCommands, NoneRunsOnTheServersThreadAndTheirNumberIsBounded) {
  run_bulk_ = false;
  EXPECT_EQ(client_.stats(0, in(1s)).error().code, Code::kDeadline);
  EXPECT_EQ(client_.purge(0, of_namespace("run-7"), in(1s)).error().code, Code::kDeadline);
  EXPECT_EQ(client_.stats(0, in(1s)).error().code, Code::kBusy);
  EXPECT_THAT(backend_.purges, IsEmpty());
  EXPECT_TRUE(client_.ping(in(1s)).all_ok());  // is not held up by them
  run_bulk();
  EXPECT_THAT(backend_.purges, SizeIs(1));
  run_bulk_ = true;
  EXPECT_TRUE(client_.stats(0, in(1s)));  // and late answers are not taken for this one
}

TEST_F(StoreCommands, AnOperatorsFenceIsNotHeldUpByTheStore) {
  run_bulk_ = false;
  const Result<FenceAck> ack = client_.weights_written(0, in(1s));
  ASSERT_TRUE(ack) << ack.error().message;
  EXPECT_EQ(ack->floor, 1u);
  EXPECT_EQ(ack->weight_writes, 1u);
  EXPECT_EQ(backend_.ack.weight_writes, 1u);
}

TEST_F(StoreCommands, AnOlderServerSaysThatItDoesNotKnowTheFence) {
  transport_.on_send = [this](std::size_t peer, const Frames& frames) {
    server_.handle({to_bytes("nm.unheard"), frames[1], frames[2]},
                   [this, peer](Frames reply) { transport_.deliver(peer, reply); });
  };
  const Result<FenceAck> ack = client_.weights_written(0, in(1s));
  ASSERT_FALSE(ack);
  EXPECT_EQ(ack.error().code, Code::kBadRequest);
  EXPECT_EQ(ack.error().message, "unknown command 'nm.unheard'");
}

TEST_F(StoreCommands, WhatCannotBeSentOrIsForUpstreamFailsAtOnce) {
  transport_.full.insert(0);
  EXPECT_EQ(client_.stats(0, in(1s)).error().code, Code::kUnavailable);
  EXPECT_EQ(client_.weights_written(0, in(1s)).error().code, Code::kUnavailable);
  LookupKeyClient foreign(transport_, clock_, {.foreign = ForeignDialect::kVllm});
  EXPECT_EQ(foreign.stats(0, in(1s)).error().code, Code::kBadRequest);
  EXPECT_EQ(foreign.weights_written(0, in(1s)).error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace newmoon
