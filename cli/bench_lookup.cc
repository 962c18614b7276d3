#include "cli/bench_lookup.h"

#include <algorithm>
#include <functional>

#include "admin/lookup_key_client.h"
#include "base/random.h"
#include "base/temp_folder.h"
#include "cli/lone_rank.h"
#include "cli/statistics.h"

namespace newmoon {
namespace {

constexpr int kBlockSize = 16;
constexpr int kWarmUps = 20;
constexpr int kSamplesMin = 200;
constexpr int kSamplesMax = 5000;
constexpr Duration kRowTime = std::chrono::milliseconds(500);
constexpr Duration kPatience = std::chrono::seconds(10);

LookupRequest make_request(std::span<const BlockHash> hashes) {
  LookupRequest request;
  request.scope = ScopeId();
  request.num_tokens = static_cast<std::uint32_t>(hashes.size()) * kBlockSize + 1;
  request.block_hashes.assign(hashes.begin(), hashes.end());
  return request;
}

class Asker {
 public:
  Asker(ClientTransport& transport, Clock& clock)
      : transport_(transport), clock_(clock), client_(transport, clock, options()) {}

  // As the engine's loop does it, from the question to the answer.
  Result<Duration> ask(const LookupRequest& request, std::uint32_t expected_tokens) {
    const std::string id = std::to_string(++asked_);
    const Time start = clock_.now();
    std::optional<Result<std::uint32_t>> answer = client_.lookup(id, request);
    while (!answer) {
      transport_.wait(start + kPatience);
      answer = client_.lookup(id, request);
    }
    const Duration taken = clock_.now() - start;
    client_.discard(id);
    if (!*answer) return std::unexpected(answer->error());
    if (**answer != expected_tokens) return fail(Code::kInternal, "a lookup was answered wrongly");
    return taken;
  }

 private:
  static LookupKeyClient::Options options() {
    LookupKeyClient::Options options;
    options.lookup_timeout = kPatience;
    return options;
  }

  ClientTransport& transport_;
  Clock& clock_;
  LookupKeyClient client_;
  int asked_ = 0;
};

Result<LookupBenchRow> measure(Asker& asker, Clock& clock, std::string case_name,
                               const LookupRequest& request, std::uint32_t expected_tokens) {
  for (int i = 0; i < kWarmUps; ++i) {
    if (const auto taken = asker.ask(request, expected_tokens); !taken) {
      return std::unexpected(taken.error());
    }
  }
  std::vector<Duration> samples;
  const Time end = clock.now() + kRowTime;
  for (int i = 0; i < kSamplesMax && (i < kSamplesMin || clock.now() < end); ++i) {
    const Result<Duration> taken = asker.ask(request, expected_tokens);
    if (!taken) return std::unexpected(taken.error());
    samples.push_back(*taken);
  }
  return LookupBenchRow{static_cast<int>(request.block_hashes.size()), std::move(case_name),
                        to_us(percentile(samples, 0.5)), to_us(percentile(samples, 0.99))};
}

using StartRank = std::function<Result<std::unique_ptr<LoneRank>>(
    const std::string& endpoint, std::span<const BlockHash> present)>;

Result<std::vector<LookupBenchRow>> run(std::span<const int> blocks, const StartRank& start) {
  const int most = blocks.empty() ? 0 : std::ranges::max(blocks);
  const std::vector<BlockHash> present = random_hashes(1, most);
  const std::vector<BlockHash> absent = random_hashes(2, most);
  const Result<TempFolder> folder = TempFolder::create();
  if (!folder) return std::unexpected(folder.error());
  const std::string endpoint = "ipc://" + folder->path() + "/rank0.sock";
  const auto rank = start(endpoint, present);
  if (!rank) return std::unexpected(rank.error());
  SystemClock clock;
  const auto transport = ZmqClientTransport::connect({endpoint}, clock);
  if (!transport) return std::unexpected(transport.error());
  Asker asker(**transport, clock);

  std::vector<LookupBenchRow> rows;
  for (const int count : blocks) {
    const auto size = static_cast<std::size_t>(count);
    const LookupRequest hits = make_request(std::span(present).first(size));
    const LookupRequest misses = make_request(std::span(absent).first(size));
    const std::uint32_t all = hits.num_tokens - 1;
    for (auto row : {measure(asker, clock, "all_hits", hits, all),
                     measure(asker, clock, "all_misses", misses, 0)}) {
      if (!row) return std::unexpected(row.error());
      rows.push_back(std::move(*row));
    }
  }
  return rows;
}

}  // namespace

std::vector<BlockHash> random_hashes(std::uint64_t seed, int count) {
  SeededRandom random(seed);
  std::vector<BlockHash> hashes;
  for (int i = 0; i < count; ++i) {
    Bytes bytes(BlockHash::kMaxSize);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    hashes.emplace_back(bytes);
  }
  return hashes;
}

Result<std::vector<LookupBenchRow>> bench_lookup(std::span<const int> blocks) {
  return run(blocks, [](const std::string& endpoint, std::span<const BlockHash> present) {
    return LoneRank::start(endpoint, kBlockSize, present);
  });
}

Result<std::vector<LookupBenchRow>> bench_lookup(std::span<const int> blocks, KvStore& store) {
  return run(blocks, [&store](const std::string& endpoint, std::span<const BlockHash> present) {
    return LoneRank::start(endpoint, kBlockSize, present, store);
  });
}

}  // namespace newmoon
