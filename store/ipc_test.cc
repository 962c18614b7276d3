// Server and client where the other side is dead, late, wrong or malicious. What
// they do when all is well is in conformance_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zmq.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/log.h"
#include "base/random.h"
#include "base/testing/failing_new.h"
#include "base/testing/raw_zmq_socket.h"
#include "base/testing/temp_dir.h"
#include "store/faulty_store.h"
#include "store/ipc_server.h"
#include "store/ipc_store.h"
#include "store/memory_store.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

Code code_of(const auto& result) { return result ? Code::kInternal : result.error().code; }

class IpcTest : public ::testing::Test {
 protected:
  std::unique_ptr<StoreServer> serve(KvStore& store) {
    auto server = StoreServer::start(endpoint_, store);
    EXPECT_TRUE(server) << server.error().message;
    return server ? std::move(*server) : nullptr;
  }
  std::unique_ptr<StoreServer> serve() { return serve(memory_); }
  std::unique_ptr<IpcStore> open(Duration timeout = seconds(10)) {
    return std::move(*IpcStore::open(endpoint_, clock_, {.timeout = timeout}));
  }

  TempDir directory_;
  std::string endpoint_ = directory_.endpoint("store");
  SystemClock clock_;
  ThreadExecutor executor_{"store-free"};
  MemoryStore memory_{{.budget_bytes = 64 << 20}, clock_, executor_};
};

// --- the server's path -----------------------------------------------------------------

TEST_F(IpcTest, APathInUseIsRefusedByName) {
  const auto server = serve();
  const auto second = StoreServer::start(endpoint_, memory_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr(endpoint_));
  EXPECT_TRUE(open()->stats());
}

TEST_F(IpcTest, ADeadServersSocketIsReplaced) {
  {
    RawZmqSocket dead(ZMQ_ROUTER, endpoint_, true);
  }
  std::ofstream(directory_.path() + "/store.lock") << "";
  const auto server = serve();
  ASSERT_TRUE(server);
  EXPECT_TRUE(open()->stats());
}

TEST_F(IpcTest, TheSocketIsForItsOwnerOnly) {
  const auto server = serve();
  struct stat info{};
  ASSERT_EQ(stat((directory_.path() + "/store").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(IpcTest, AnEndpointThatIsNoPathIsRefused) {
  EXPECT_EQ(code_of(StoreServer::start("tcp://127.0.0.1:1", memory_)), Code::kBadRequest);
  EXPECT_EQ(code_of(IpcStore::open("tcp://127.0.0.1:1", clock_)), Code::kBadRequest);
}

// --- a server without memory --------------------------------------------------------------

TEST_F(IpcTest, ARequestThereIsNoMemoryForIsBusyAndTheServerServesOn) {
  const auto server = serve();
  const auto store = open();
  const TestBlock block(1, 7);
  std::vector<PutItem> items;
  for (std::uint64_t i = 0; i < 1000; ++i) items.push_back(put_item(key_of(1, i), block));
  {
    // Only the server makes anything as large of them: a list of a thousand PutItems.
    const newmoon::testing::NoMemoryFrom from(items.size() * sizeof(PutItem));
    for (const Status& status : store->put(items)) ASSERT_EQ(code_of(status), Code::kBusy);
    EXPECT_TRUE(store->ping());
  }
  for (const Status& status : store->put(items)) ASSERT_TRUE(status);
}

// --- a put that is late -------------------------------------------------------------------

// Whoever gave up takes it for over, and what it purges then for empty.
TEST_F(IpcTest, APutThatItsClientGaveUpDoesNotFillAPurgedScope) {
  SeededRandom random(1);
  FaultyStore slow(memory_, {{.op = FaultRule::Op::kPut, .hold = "late"}}, clock_, random);
  const auto server = serve(slow);
  EXPECT_EQ(code_of(put_one(*open(milliseconds(50)), key_of(1, 1))), Code::kDeadline);
  const auto store = open();
  ASSERT_TRUE(store->purge_scope(scope_of(1), false));
  slow.release("late");
  while (memory_.stats()->refused_late_puts == 0 && memory_.stats()->blocks == 0) {
    std::this_thread::yield();
  }
  EXPECT_EQ(code_of(check_one(*store, key_of(1, 1))), Code::kMiss);
  EXPECT_TRUE(put_one(*store, key_of(1, 1)));
  EXPECT_TRUE(check_one(*store, key_of(1, 1)));
}

// --- a server that is dead, comes back, or is slow ----------------------------------------

// The timeout is long, so that a test that waits for it fails by CTest's.
TEST_F(IpcTest, NobodyThereIsUnavailableAtOnce) {
  const auto store = open(seconds(1000));
  EXPECT_EQ(code_of(put_one(*store, key_of(1, 1))), Code::kUnavailable);
  EXPECT_EQ(code_of(check_one(*store, key_of(1, 1))), Code::kUnavailable);
  EXPECT_EQ(code_of(store->stats()), Code::kUnavailable);
  EXPECT_EQ(code_of(store->purge_scope(scope_of(1), true)), Code::kUnavailable);
  EXPECT_EQ(code_of(store->remove_all()), Code::kUnavailable);
  EXPECT_EQ(code_of(store->list_scopes()), Code::kUnavailable);
  const Shard shard;
  EXPECT_EQ(code_of(store->hit_prefix(scope_of(1), {&shard, 1}, {})), Code::kUnavailable);
}

TEST_F(IpcTest, AServerThatReturnsIsFound) {
  const auto store = open(seconds(1000));
  for (int life = 0; life < 3; ++life) {
    auto server = serve();
    EXPECT_TRUE(put_one(*store, key_of(1, life)));
    EXPECT_TRUE(check_one(*store, key_of(1, 0)));
    server.reset();
    EXPECT_EQ(code_of(check_one(*store, key_of(1, 0))), Code::kUnavailable);
  }
}

TEST_F(IpcTest, AServerThatDiesUnderARequestIsUnavailableAtOnce) {
  auto server = std::make_unique<RawZmqSocket>(ZMQ_ROUTER, endpoint_, true);
  const auto store = open(seconds(1000));
  std::thread death([&] {
    EXPECT_TRUE(server->receive());
    server.reset();
  });
  EXPECT_EQ(code_of(put_one(*store, key_of(1, 1))), Code::kUnavailable);
  death.join();
}

TEST_F(IpcTest, AFailedBatchRepeatsTheErrorForEveryItem) {
  const auto store = open();
  const TestBlock block(2 << 20, 1);
  TestBlock into(2 << 20, 2);
  std::vector<PutItem> puts;
  std::vector<GetItem> gets;
  for (int i = 0; i < 7; ++i) {
    puts.push_back(put_item(key_of(1, i), block));
    gets.push_back({key_of(1, i), into.target()});
  }
  puts[3].header.shard ^= 1;
  const std::vector<Status> stored = store->put(puts);
  const std::vector<Result<GetValue>> read = store->get(gets);
  ASSERT_EQ(stored.size(), 7u);
  ASSERT_EQ(read.size(), 7u);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(code_of(stored[i]), i == 3 ? Code::kBadRequest : Code::kUnavailable);
    EXPECT_EQ(code_of(read[i]), Code::kUnavailable);
  }
}

TEST_F(IpcTest, AnOverdueAnswerIsNotTakenForTheNextOne) {
  SeededRandom random(1);
  FaultyStore slow(memory_, {{.op = FaultRule::Op::kGet, .nth = 1, .hold = "slow"}}, clock_,
                   random);
  const auto server = serve(slow);
  const auto patient = open(seconds(1000));
  ASSERT_TRUE(put_one(*patient, key_of(1, 1), 1000));
  ASSERT_TRUE(put_one(*patient, key_of(1, 2), 1000));
  const auto store = open(seconds(1));
  EXPECT_EQ(code_of(check_one(*store, key_of(1, 1), 1000)), Code::kDeadline);
  slow.release("slow");
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(check_one(*patient, key_of(1, 2), 1000));
  EXPECT_TRUE(check_one(*store, key_of(1, 2), 1000));
}

TEST_F(IpcTest, ASlowGetHoldsUpNoLookup) {
  SeededRandom random(1);
  FaultyStore slow(memory_, {{.op = FaultRule::Op::kGet, .hold = "slow"}}, clock_, random);
  const auto server = serve(slow);
  const auto store = open(seconds(1000));
  ASSERT_TRUE(put_one(*store, key_of(1, 1)));
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] { EXPECT_TRUE(check_one(*store, key_of(1, 1))); });
  }
  while (slow.waiting_at("slow") < 2) std::this_thread::yield();
  EXPECT_TRUE(is_there(*store, key_of(1, 1)));
  slow.release("slow");
  for (std::thread& reader : readers) reader.join();
}

TEST_F(IpcTest, MoreRequestsThanAreQueuedAreBusy) {
  SeededRandom random(1);
  FaultyStore slow(memory_, {{.op = FaultRule::Op::kGet, .hold = "slow"}}, clock_, random);
  auto server = StoreServer::start(endpoint_, slow, {.workers = 1, .queued_requests_max = 1});
  ASSERT_TRUE(server);
  const auto store = open(seconds(1000));
  std::atomic<int> busy{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] { busy += code_of(check_one(*store, key_of(1, 1))) == Code::kBusy; });
  }
  while (busy < 1) std::this_thread::yield();
  slow.release("slow");
  for (std::thread& reader : readers) reader.join();
  EXPECT_GE(busy, 1);
  EXPECT_LE(busy, 3);
}

// --- what is not a request -------------------------------------------------------------------

class BadRequests : public IpcTest {
 protected:
  static Bytes head_of(ipc::Op op, std::uint32_t count = 0, std::uint32_t second = 0) {
    const auto frame =
        ipc::encode_head({.op = op, .request_id = 5, .count = count, .second_count = second});
    return Bytes(frame.begin(), frame.end());
  }
  // The error that a raw client gets for those frames.
  Code refusal(const Frames& frames) {
    const std::optional<Frames> reply = raw_.ask(frames);
    EXPECT_TRUE(reply);
    if (!reply) return Code::kInternal;
    const Result<ipc::Head> head = ipc::decode_head(reply->at(0));
    EXPECT_TRUE(head && head->reply);
    return code_of(ipc::status_from_wire(static_cast<std::uint8_t>(head->flags), ""));
  }

  std::unique_ptr<StoreServer> server_ = serve();
  RawZmqSocket raw_{ZMQ_DEALER, endpoint_};
};

TEST_F(BadRequests, AreAnsweredWithAnErrorAndCounted) {
  using ipc::Op;
  Bytes long_hash(33 + 16 + 8);
  long_hash[24] = 33;
  Bytes header(8 + 128);
  header[8 + 98] = 200;  // block_hash_bytes
  Bytes reply = head_of(Op::kStats);
  reply[5] |= ipc::Head::kReply;
  Bytes huge_get(72);
  huge_get[31] = 0xff;  // payload_bytes
  const std::vector<Frames> bad = {
      {Bytes(1)},
      {Bytes(23)},
      {Bytes(24)},
      {Bytes(100'000, 0xff)},
      {reply},
      {head_of(static_cast<Op>(77))},
      {head_of(Op::kPut, 1)},
      {head_of(Op::kPut, 0), Bytes(7)},
      {head_of(Op::kPut, 1), Bytes(8 + 127), Bytes(10)},
      {head_of(Op::kPut, 2), Bytes(8 + 256), Bytes(10)},
      {head_of(Op::kPut, 0), Bytes(8), Bytes(10)},
      {head_of(Op::kPut, 1), header, Bytes(10)},
      {head_of(Op::kPut, 0xffffffff), Bytes(8 + 128), Bytes(10)},
      {head_of(Op::kGet, 1)},
      {head_of(Op::kGet, 1), Bytes(71)},
      {head_of(Op::kGet, 1), Bytes(72), Bytes(1)},
      {head_of(Op::kGet, 1), huge_get},
      {head_of(Op::kGet, 0x10000000), Bytes(72)},
      {head_of(Op::kHitPrefix)},
      {head_of(Op::kHitPrefix, 1, 1), Bytes(56)},
      {head_of(Op::kHitPrefix, 1, 1), long_hash},
      {head_of(Op::kHitPrefix, 0xffffffff, 0xffffffff), Bytes(57)},
      {head_of(Op::kPurgeScope)},
      {head_of(Op::kPurgeScope), Bytes(15)},
      {head_of(Op::kDescribeScope), Bytes(16 + 1025)},
      {head_of(Op::kStats), Bytes(1), Bytes(1)},
  };
  std::size_t number = 0;
  for (const Frames& frames : bad) {
    EXPECT_EQ(refusal(frames), Code::kBadRequest) << "request " << number;
    EXPECT_EQ(server_->bad_requests(), ++number);
  }
  EXPECT_TRUE(put_one(*open(), key_of(1, 1)));
}

// Of well-formed bytes: an answer would take minutes of the server's only thread.
TEST_F(BadRequests, LookupsOfTooManyBlocksTimesShardsAreRefused) {
  constexpr std::uint32_t kBlocks = 10'000;
  const auto lookup = [](std::uint32_t shards) {
    return Frames{head_of(ipc::Op::kHitPrefix, kBlocks, shards),
                  Bytes(16 + std::size_t{shards} * 8 + std::size_t{kBlocks} * 33)};
  };
  EXPECT_EQ(refusal(lookup(401)), Code::kBadRequest);
  const std::optional<Frames> answer = raw_.ask(lookup(400));
  ASSERT_TRUE(answer);
  EXPECT_EQ(server_->bad_requests(), 1u);
}

TEST_F(BadRequests, NoiseDoesNotFillTheLog) {
  std::atomic<int> lines = 0;
  set_log_sink([&](LogLevel, std::string_view, std::string_view) { ++lines; });
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(raw_.ask({Bytes(3)}));
  set_log_sink({});
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 7);  // every doubling
}

TEST_F(BadRequests, TooManyFramesAreRefusedWithoutBeingKept) {
  Frames frames = {head_of(ipc::Op::kPut, 1)};
  frames.resize(1100);
  EXPECT_EQ(refusal(frames), Code::kBadRequest);
  EXPECT_TRUE(open()->stats());
}

TEST_F(BadRequests, AnEmptyMessageIsAnsweredToo) {
  const std::optional<Frames> reply = raw_.ask({Bytes()});
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->size(), 3u);
  EXPECT_TRUE(reply->at(0).empty());
  EXPECT_NE(ipc::decode_head(reply->at(1))->flags, 0u);
}

TEST_F(BadRequests, AHugeFrameCostsItsSenderTheConnection) {
  ASSERT_TRUE(raw_.send({head_of(ipc::Op::kStats), Bytes((64 << 20) + 1)}));
  EXPECT_TRUE(open()->stats());
}

TEST_F(BadRequests, ARequestSocketGetsItsAnswerToo) {
  RawZmqSocket request(ZMQ_REQ, endpoint_);
  const std::optional<Frames> reply = request.ask({head_of(ipc::Op::kStats)});
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->size(), 2u);
  EXPECT_EQ(ipc::decode_head(reply->at(0))->request_id, 5u);
  EXPECT_EQ(ipc::decode_stats(reply->at(1))->budget_bytes, 64u << 20);
}

TEST_F(BadRequests, NoiseIsAnsweredMessageByMessage) {
  SeededRandom random(3);
  const auto noise = [&](std::size_t bytes_max) {
    Bytes bytes(random.below(bytes_max + 1));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    return bytes;
  };
  set_log_threshold(LogLevel::kError);
  for (int i = 0; i < 2000; ++i) {
    Frames frames = {head_of(static_cast<ipc::Op>(random.below(10)),
                             static_cast<std::uint32_t>(random.below(4)),
                             static_cast<std::uint32_t>(random.below(4)))};
    if (random.chance(20)) frames[0] = noise(40);
    while (random.chance(60)) frames.push_back(noise(300));
    ASSERT_TRUE(raw_.ask(frames));
  }
  set_log_threshold(LogLevel::kWarning);
  EXPECT_TRUE(put_one(*open(), key_of(1, 1)));
  EXPECT_TRUE(check_one(*open(), key_of(1, 1)));
}

// --- what is not an answer ---------------------------------------------------------------------

// A server made up by the test: answers each request with what `answer` says.
class FakeServer {
 public:
  using Answer = std::function<std::vector<Frames>(const ipc::Head&)>;

  FakeServer(const std::string& endpoint, Answer answer)
      : socket_(ZMQ_ROUTER, endpoint, true), answer_(std::move(answer)) {
    socket_.set(ZMQ_RCVTIMEO, 20);
    thread_ = std::thread([this] { run(); });
  }
  ~FakeServer() {
    stopping_ = true;
    thread_.join();
  }

 private:
  void run() {
    while (!stopping_) {
      const std::optional<Frames> request = socket_.receive();
      if (!request) continue;
      for (Frames frames : answer_(*ipc::decode_head(request->at(1)))) {
        frames.insert(frames.begin(), request->at(0));
        socket_.send(frames);
      }
    }
  }

  RawZmqSocket socket_;
  Answer answer_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

Bytes reply_head(ipc::Head head, std::uint32_t count = 0) {
  head.reply = true;
  head.count = count;
  const auto frame = ipc::encode_head(head);
  return Bytes(frame.begin(), frame.end());
}

TEST_F(IpcTest, AnswersToOtherRequestsArePassedOver) {
  FakeServer server(endpoint_, [](ipc::Head head) {
    const std::uint64_t right = head.request_id;
    std::vector<Frames> answers;
    for (const std::uint64_t id : {right - 1, right + 1, right}) {
      head.request_id = id;
      answers.push_back({reply_head(head), ipc::encode_count(id == right ? 1 : 99)});
    }
    return answers;
  });
  const auto store = open();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(store->remove_all(), 1u);
}

TEST_F(IpcTest, GarbageIsUnavailableAndNamesTheServer) {
  std::vector<std::function<Frames(ipc::Head)>> garbage;
  garbage.push_back([](ipc::Head) { return Frames{Bytes()}; });
  garbage.push_back([](ipc::Head) { return Frames{Bytes(24, 0xff), Bytes(8)}; });
  garbage.push_back([](ipc::Head head) { return Frames{reply_head(head)}; });
  garbage.push_back([](ipc::Head head) { return Frames{reply_head(head, 1), Bytes(7)}; });
  garbage.push_back([](ipc::Head head) {
    head.op = ipc::Op::kDescribeScope;
    return Frames{reply_head(head), Bytes(8)};
  });
  garbage.push_back([](ipc::Head head) { return Frames{reply_head(head, 9), Bytes(8), Bytes(8)}; });
  garbage.push_back([](ipc::Head head) {  // a get result with another payload
    return Frames{reply_head(head, 1), Bytes(ipc::kGetResultBytes), Bytes(), Bytes(99)};
  });
  garbage.push_back([](ipc::Head head) {  // an error without its message
    return Frames{reply_head(head, 1), Bytes(ipc::kGetResultBytes, 1), Bytes()};
  });
  std::atomic<std::size_t> kind{0};
  FakeServer server(endpoint_,
                    [&](ipc::Head head) { return std::vector<Frames>{garbage[kind](head)}; });
  const auto store = open(seconds(1000));
  for (kind = 0; kind < garbage.size(); ++kind) {
    EXPECT_EQ(code_of(put_one(*store, key_of(1, 1))), Code::kUnavailable) << kind;
    const Status read = check_one(*store, key_of(1, 1));
    EXPECT_EQ(code_of(read), Code::kUnavailable) << kind;
    EXPECT_THAT(read.error().message, HasSubstr(endpoint_));
    EXPECT_EQ(code_of(store->stats()), Code::kUnavailable) << kind;
    if (kind == 2) continue;  // an empty list
    EXPECT_EQ(code_of(store->list_scopes()), Code::kUnavailable) << kind;
  }
}

TEST_F(IpcTest, TheSocketOfAnEngineIsCalledThat) {
  FakeServer server(endpoint_, [](const ipc::Head&) { return std::vector<Frames>{{Bytes(1)}}; });
  const auto listed = open(seconds(1000))->list_scopes();
  ASSERT_EQ(code_of(listed), Code::kUnavailable);
  EXPECT_THAT(listed.error().message, AllOf(HasSubstr("the socket of an engine, not of a store"),
                                            HasSubstr("newmoon ctl --endpoint " + endpoint_)));
}

TEST_F(IpcTest, MoreHitsThanBlocksAreNotBelieved) {
  FakeServer server(endpoint_, [](ipc::Head head) {
    return std::vector<Frames>{{reply_head(head), ipc::encode_count(2)}};
  });
  const Shard shard;
  const std::vector<BlockHash> blocks = blocks_of(0, 1);
  EXPECT_EQ(code_of(open()->hit_prefix(scope_of(1), {&shard, 1}, blocks)), Code::kUnavailable);
}

TEST_F(IpcTest, AnUnknownErrorCodeIsAnErrorStill) {
  FakeServer server(endpoint_, [](ipc::Head head) {
    head.flags = 0x1234;
    return std::vector<Frames>{{reply_head(head), Bytes()}};
  });
  EXPECT_EQ(code_of(open()->stats()), Code::kInternal);
  EXPECT_FALSE(put_one(*open(), key_of(1, 1)));
}

// Which of a get would say that a value is there and has another length.
TEST_F(IpcTest, AGetThatIsRefusedAsAWholeIsNoMatterOfLength) {
  FakeServer server(endpoint_, [](ipc::Head head) {
    head.flags = ipc::to_wire(fail(Code::kBadRequest, ""));
    return std::vector<Frames>{{reply_head(head), Bytes()}};
  });
  EXPECT_EQ(code_of(check_one(*open(), key_of(1, 1), 100)), Code::kInternal);
}

TEST_F(IpcTest, AServerThatOnlyListensIsADeadline) {
  FakeServer server(endpoint_, [](ipc::Head) { return std::vector<Frames>(); });
  EXPECT_EQ(code_of(open(milliseconds(50))->stats()), Code::kDeadline);
}

// --- batches
// --------------------------------------------------------------------------------------

TEST_F(IpcTest, BatchesOfManyMessagesComeBackWhole) {
  const auto server = serve();
  const auto store = open(seconds(1000));
  std::vector<TestBlock> targets;
  std::vector<PutItem> puts;
  std::vector<GetItem> gets;
  const TestBlock block(700'000, 1, 61);
  for (int i = 0; i < 20; ++i) targets.emplace_back(700'000, 2, 61);
  for (int i = 0; i < 20; ++i) {
    puts.push_back(put_item(key_of(1, i), block));
    gets.push_back({key_of(1, i), targets[i].target()});
  }
  for (const Status& status : store->put(puts)) EXPECT_TRUE(status);
  for (const auto& value : store->get(gets)) {
    ASSERT_TRUE(value) << value.error().message;
    EXPECT_EQ(value->payload_checksum, value->header.checksum);
  }
  for (const TestBlock& target : targets) EXPECT_EQ(target.bytes(), block.bytes());
}

TEST_F(IpcTest, AValueOverTheLimitIsRefusedWithoutSendingIt) {
  const auto server = serve();
  const Bytes zeros((64 << 20) + 1);
  const ConstFragment fragment(zeros);
  const PutItem item{
      key_of(1, 1), make_header(key_of(1, 1), test_layout(), zeros.size()), {&fragment, 1}};
  const auto store = open();
  EXPECT_EQ(code_of(store->put({&item, 1})[0]), Code::kBadRequest);
  EXPECT_TRUE(put_one(*store, key_of(1, 2)));
}

}  // namespace
}  // namespace newmoon
