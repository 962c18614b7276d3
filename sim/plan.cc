#include "sim/plan.h"

#include <algorithm>
#include <array>

#include "model/toy_model.h"
#include "sim/task_queue.h"

namespace newmoon::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::array<std::string_view, static_cast<std::size_t>(Protocol::kCount)> kProtocols = {
    "pause_abort", "pause_wait",  "pause_keep",     "pause_keep_mix", "in_flight",
    "sleep_1",     "sleep_2",     "no_finish",      "reset_only",     "pause_only",
    "partial",     "unannounced", "unknown_writer", "crash",
};

class Drawer {
 public:
  explicit Drawer(std::uint64_t seed) : random_(toy::mix(seed ^ 0x706c616e)) { plan_.seed = seed; }

  Plan draw() {
    draw_engines();
    draw_faults();
    draw_prefixes();
    draw_episodes();
    draw_requests();
    if (random_.chance(25)) plan_.load_timeout = between(milliseconds(1), milliseconds(20));
    return std::move(plan_);
  }

 private:
  int pick(int low, int high) {
    return low + static_cast<int>(random_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  template <class T, std::size_t n>
  T one_of(const std::array<T, n>& values) {
    return values[random_.below(n)];
  }
  Duration between(Duration low, Duration high) { return draw_duration(random_, low, high); }

  void draw_engines();
  void draw_faults();
  std::string draw_rules();
  void draw_prefixes();
  void draw_episodes();
  PlannedEpisode draw_episode(std::size_t index);
  void draw_requests();
  PlannedRequest draw_request(std::size_t index);
  std::vector<Token> draw_tokens(std::size_t count);

  SeededRandom random_;
  Plan plan_;
  std::vector<std::vector<Token>> prefixes_;
  Duration span_{0};  // in which requests and episodes begin
};

void Drawer::draw_engines() {
  plan_.replicas = random_.chance(45) ? 2 : 1;
  plan_.ranks = static_cast<std::size_t>(pick(1, 3));
  plan_.block_size = one_of<int>(std::array{2, 4, 4});
  plan_.slots = pick(1, 4);
  plan_.step_tokens_max = one_of<int>(std::array{4, 8, 16, 32});
  plan_.prefill_tokens_min = random_.chance(15) ? plan_.block_size : 1;
  plan_.step_tokens_max =
      std::max(plan_.step_tokens_max, plan_.slots + 2 * plan_.prefill_tokens_min);
  const int longest = 36 / plan_.block_size + 2;  // blocks of the longest request
  plan_.block_count = static_cast<std::size_t>(longest + pick(0, 8));
  plan_.paged = random_.chance(60);
  plan_.steps_in_flight_max = random_.chance(50) ? 2 : 1;
  plan_.writes_overtake = random_.chance(40);
  plan_.identity = one_of<IdentityMode>(
      std::array{IdentityMode::kDigest, IdentityMode::kDigest, IdentityMode::kDigest,
                 IdentityMode::kTrustedLabel, IdentityMode::kUnique});
  plan_.remove_all = plan_.replicas == 1 && random_.chance(8);
  plan_.checksum = random_.chance(90);
  plan_.kv_events = random_.chance(40);
  plan_.min_load_tokens = random_.chance(15) ? 8 : 0;
  plan_.batch_blocks_max = one_of<std::size_t>(std::array<std::size_t, 3>{1, 2, 64});
  plan_.jobs_max = random_.chance(10) ? 1 : 256;
  plan_.store_bytes = random_.chance(25) ? (std::uint64_t{8} << 10) : (std::uint64_t{256} << 10);
  plan_.deadline = between(milliseconds(20), milliseconds(120));
  plan_.lookup_timeout = between(milliseconds(10), milliseconds(40));
  plan_.step_max = between(microseconds(100), milliseconds(3));
  plan_.write_gap_max = between(microseconds(10), milliseconds(8));
}

void Drawer::draw_faults() {
  // Some seeds are faultless but for their episode, so that resets must not be
  // degraded and hits must happen.
  const auto percent = [&](unsigned high) {
    return random_.chance(45) ? static_cast<unsigned>(pick(1, static_cast<int>(high))) : 0u;
  };
  plan_.network.loss_percent = percent(15);
  plan_.network.repeat_percent = percent(20);
  plan_.network.slow_percent = percent(15);
  plan_.network.cut_percent = random_.chance(20) ? percent(8) : 0;
  plan_.network.delay_max = between(microseconds(20), microseconds(800));
  plan_.store.slow_percent = percent(60);
  plan_.store.call_fail_percent = random_.chance(40) ? percent(15) : 0;
  plan_.store.item_fail_percent = random_.chance(40) ? percent(15) : 0;
  plan_.store.corrupt_percent = random_.chance(50) ? percent(25) : 0;
  plan_.store.misdirect_percent = random_.chance(50) ? percent(25) : 0;
  plan_.store.forget_percent = random_.chance(40) ? percent(20) : 0;
  plan_.store.call_max = between(microseconds(20), milliseconds(3));
  plan_.stall_percent = percent(20);
  if (random_.chance(30)) plan_.store_rules = draw_rules();
  const bool some = plan_.network.loss_percent + plan_.network.repeat_percent +
                        plan_.network.slow_percent + plan_.store.slow_percent +
                        plan_.stall_percent >
                    0;
  if (!some) plan_.store.slow_percent = 30;  // every seed has a fault
}

// Ways to be wrong that outlive the call: bytes that arrive after a put was given up,
// puts that are lost, values that are damaged where they lie.
std::string Drawer::draw_rules() {
  const std::string late = std::to_string(pick(5, 60));
  const std::array<std::string, 6> rules = {
      "put:share=30:late_ms=" + late,
      "put:share=10:drop",
      "put:share=10:corrupt",
      "put:share=10:truncate",
      "get:every=3:delay_ms=" + late + ":when=after",
      "hit:every=4:drop",
  };
  std::string spec = rules[0];
  for (std::size_t i = 1; i < rules.size(); ++i) {
    if (random_.chance(25)) spec += "," + rules[i];
  }
  return spec;
}

void Drawer::draw_prefixes() {
  const int count = pick(1, 3);
  for (int i = 0; i < count; ++i) {
    const std::size_t share = i > 0 && random_.chance(40) ? 4 : 0;  // a common beginning
    std::vector<Token> tokens(prefixes_.empty() ? std::vector<Token>{} : prefixes_.front());
    tokens.resize(std::min(share, tokens.size()));
    const std::vector<Token> more = draw_tokens(static_cast<std::size_t>(pick(6, 18)));
    tokens.insert(tokens.end(), more.begin(), more.end());
    prefixes_.push_back(std::move(tokens));
  }
}

std::vector<Token> Drawer::draw_tokens(std::size_t count) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) {
    token = static_cast<Token>(random_.below(static_cast<std::uint64_t>(plan_.vocab_size)));
  }
  return tokens;
}

PlannedEpisode Drawer::draw_episode(std::size_t index) {
  PlannedEpisode episode;
  episode.replica = random_.below(plan_.replicas);
  // The first two always bring new weights.
  const auto last = index < 2 ? Protocol::kNoFinish : Protocol::kCrash;
  episode.protocol = static_cast<Protocol>(random_.below(static_cast<std::uint64_t>(last) + 1));
  if (index >= 2 && random_.chance(30)) episode.protocol = Protocol::kResetOnly;
  // A -> B -> A and the like: few versions, often the one before.
  episode.update = full_weights(random_.below(random_.chance(75) ? 2 : 3));
  if (random_.chance(15)) {
    episode.update = SetLora{.path = random_.chance(30) ? "" : "adapter", .scale = 1.0f};
  } else if (random_.chance(15)) {
    episode.update = SetTensors{{{"norm", to_bytes(std::to_string(pick(0, 1)))}}};
  }
  episode.resets = pick(0, 3);
  episode.clear_cache = random_.chance(60);
  episode.reset_running = random_.chance(70);
  episode.reset_connector = random_.chance(60);
  episode.keep_verified = random_.chance(30);
  episode.finish = random_.chance(80);
  episode.pause_mode = pick(0, 2);
  episode.rank = random_.below(plan_.ranks);
  episode.torn = random_.chance(50);
  episode.dwell = random_.chance(50) ? Duration{0} : between(Duration{0}, milliseconds(12));
  return episode;
}

void Drawer::draw_episodes() {
  span_ = between(milliseconds(60), milliseconds(160));
  const std::size_t count = static_cast<std::size_t>(pick(2, 6));
  for (std::size_t i = 0; i < count; ++i) {
    PlannedEpisode episode = draw_episode(i);
    const auto part = span_ / static_cast<Duration::rep>(count);
    episode.at = part * static_cast<Duration::rep>(i) + between(part / 4, part);
    plan_.episodes.push_back(std::move(episode));
  }
  plan_.faults_end = span_ + milliseconds(60);
}

PlannedRequest Drawer::draw_request(std::size_t index) {
  PlannedRequest request;
  request.replica = random_.below(plan_.replicas);
  request.at = between(Duration{0}, span_ * 5 / 4);
  request.id = "r" + std::to_string(random_.chance(15) && index > 0 ? random_.below(index) : index);
  request.prompt = prefixes_[random_.below(prefixes_.size())];
  if (random_.chance(20)) request.prompt.resize(request.prompt.size() / 2 + 1);
  const std::vector<Token> suffix = draw_tokens(static_cast<std::size_t>(pick(0, 5)));
  request.prompt.insert(request.prompt.end(), suffix.begin(), suffix.end());
  if (random_.chance(10)) request.cache_salt = "salt";
  request.max_tokens = static_cast<std::uint32_t>(pick(1, 8));
  request.continue_across_update = random_.chance(15);
  request.abort = random_.chance(15);
  request.abort_after = between(Duration{0}, milliseconds(12));
  return request;
}

void Drawer::draw_requests() {
  const std::size_t count = static_cast<std::size_t>(pick(14, 36));
  for (std::size_t i = 0; i < count; ++i) plan_.requests.push_back(draw_request(i));
}

}  // namespace

std::string_view to_string(Protocol protocol) {
  return kProtocols[static_cast<std::size_t>(protocol)];
}

Plan draw_plan(std::uint64_t seed) { return Drawer(seed).draw(); }

WeightUpdate full_weights(std::size_t version) {
  return LoadGguf{"weights-" + std::to_string(version)};
}

}  // namespace newmoon::sim
