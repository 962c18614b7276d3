#include "sim/world.h"

#include <algorithm>
#include <utility>

#include "hash/sha256.h"

namespace newmoon::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Everything that is under way must have ended so long after the faults.
constexpr Duration kRestMax = seconds(20);

std::vector<FaultRule> rules_of(const std::string& spec) {
  return spec.empty() ? std::vector<FaultRule>{} : parse_fault_rules(spec).value();
}

}  // namespace

World::World(Plan plan, FiberPool& fibers, TraceSink trace)
    : plan_(std::move(plan)),
      kernel_(plan_.seed, fibers, std::move(trace)),
      clock_(kernel_),
      verdict_(kernel_),
      hasher_(HashAlgo::kXxhashCbor, plan_.block_size, std::nullopt),
      oracle_(hasher_, plan_.ranks, plan_.vocab_size, verdict_),
      store_thread_(kernel_, milliseconds(1)),
      memory_store_({.budget_bytes = plan_.store_bytes, .free_slice_blocks = 4}, clock_,
                    store_thread_),
      store_random_(plan_.seed),
      faulty_store_(memory_store_, rules_of(plan_.store_rules), clock_, store_random_),
      store_(kernel_, faulty_store_, memory_store_, verdict_),
      network_(plan_.network),
      lives_(plan_.replicas) {
  store_.faults = plan_.store;
  for (std::size_t number = 0; number < plan_.replicas; ++number) start_replica(number);
  seed_foreign_values();
}

World::~World() = default;

void World::start_replica(std::size_t number) {
  const Surroundings surroundings{plan_,   kernel_, clock_,  verdict_,
                                  oracle_, store_,  hasher_, network_};
  lives_[number].push_back(std::make_unique<Replica>(surroundings, number));
  Replica& engine = *lives_[number].back();
  engine.on_output = [this, number](const RequestOutput& output) { take_output(number, output); };
  engine.on_write = [this, number](bool announced) { note_write(number, announced); };
  engine.start();
}

SeedResult World::run() {
  const auto after_each = [this] {
    for (const auto& lives : lives_) {
      if (lives.back()->alive()) lives.back()->after_event();
    }
  };
  run_plan();
  kernel_.run(kNever, [this] { return planned_is_done_; }, after_each);
  if (!planned_is_done_) verdict_.violation("progress", "the run stopped before its plan ended");
  for (const auto& lives : lives_) lives.back()->stop_engine();
  if (!kernel_.drain()) verdict_.violation("progress", "some simulated thread never ends");
  SeedResult found = result();
  if (found.requests < 8 || found.updates < 2 || found.faults < 1) {
    found.violations.push_back("plan: the seed holds too little");
  }
  return found;
}

void World::run_plan() {
  fibers_running_ = plan_.replicas + plan_.requests.size() + 1;
  const auto spawn = [this](auto body) {
    kernel_.spawn([this, body] {
      body();
      --fibers_running_;
    });
  };
  for (std::size_t number = 0; number < plan_.replicas; ++number) {
    spawn([this, number] { trainer(number); });
  }
  for (const PlannedRequest& planned : plan_.requests) {
    spawn([this, &planned] { user(planned); });
  }
  spawn([this] { inspector(); });
  kernel_.spawn([this] {
    kernel_.sleep_until(plan_.faults_end);
    stop_faults();
    come_to_rest();
    planned_is_done_ = true;
  });
}

// --- requests ---

void World::user(const PlannedRequest& planned) {
  kernel_.sleep_until(planned.at);
  Ticket* ticket = submit(planned);
  if (ticket == nullptr || !planned.abort) return;
  kernel_.sleep_for(planned.abort_after);
  if (ticket->finished) return;
  Replica& engine = replica(planned.replica);
  engine.call([&](EngineCore& core) {
    const RequestId id = planned.id;
    core.abort_requests({&id, 1});
  });
}

// nullptr: refused, e.g. since the id is in use.
World::Ticket* World::submit(const PlannedRequest& planned) {
  auto ticket = std::make_unique<Ticket>();
  ticket->planned = planned;
  ticket->replica = planned.replica;
  ticket->extra.cache_salt = planned.cache_salt;
  ticket->tokens = planned.prompt;
  RequestInput input;
  input.id = planned.id;
  input.prompt = planned.prompt;
  input.max_tokens = planned.max_tokens;
  input.ignore_eos = true;
  input.extra_keys = ticket->extra;
  input.continue_across_update = planned.continue_across_update;
  const auto name = std::pair(planned.replica, planned.id);
  Ticket* added = nullptr;
  replica(planned.replica).call([&](EngineCore& core) {
    const Status status = core.add_request(input);
    if (!status && !open_.contains(name)) {
      verdict_.violation("requests", "a request is refused: " + to_string(status.error()));
    }
    if (!status) return;
    kernel_.trace("request", {planned.replica, tickets_.size(), planned.prompt.size()});
    const bool again = std::ranges::any_of(tickets_, [&](const auto& other) {
      return other->planned.id == planned.id && other->replica == planned.replica;
    });
    if (again) verdict_.saw(Overlap::kRequestIdReuse);
    ticket->last = kernel_.now();
    ticket->mixed = replica(planned.replica).unfenced_write();
    oracle_.learn(ticket->tokens, ticket->extra);
    added = ticket.get();
    open_[name].push_back(added);
    tickets_.push_back(std::move(ticket));
  });
  return added;
}

void World::take_output(std::size_t number, const RequestOutput& output) {
  const auto found = open_.find({number, output.id});
  if (found == open_.end()) {
    verdict_.violation("requests", "an output of request " + output.id + ", which is not open");
    return;
  }
  Ticket& ticket = *found->second.front();
  for (const SampledToken& sampled : output.tokens)
    check_token(ticket, replica(number), sampled.token);
  oracle_.learn(ticket.tokens, ticket.extra);
  if (output.finished) note_end(ticket, output);
}

// Contract W1: what a cold engine says that holds the weights in force.
void World::check_token(Ticket& ticket, const Replica& engine, Token token) {
  kernel_.trace("token", {ticket.replica, ticket.tokens.size(), static_cast<std::uint64_t>(token)});
  const std::vector<WeightsByRank> in_force = engine.weights_since(ticket.last);
  const bool right = std::ranges::any_of(in_force, [&](const WeightsByRank& weights) {
    return oracle_.next_token(weights, ticket.tokens) == token;
  });
  if (!right && !ticket.mixed) {
    verdict_.violation("W1", "token " + std::to_string(ticket.tokens.size()) + " of request " +
                                 ticket.planned.id + " of replica " +
                                 std::to_string(ticket.replica) + " is not what its weights say");
  }
  ticket.tokens.push_back(token);
  ticket.last = kernel_.now();
}

void World::note_end(Ticket& ticket, const RequestOutput& output) {
  kernel_.trace("end",
                {ticket.replica, static_cast<std::uint64_t>(output.status), ticket.tokens.size()});
  ticket.finished = true;
  ticket.end = output;
  const auto open = open_.find({ticket.replica, ticket.planned.id});
  open->second.pop_front();
  if (open->second.empty()) open_.erase(open);
  Replica& engine = replica(ticket.replica);
  engine.note_finished(ticket.planned.id);
  if (output.counters.local_hit_tokens > 0) verdict_.saw(Overlap::kLocalHit);
  if (output.counters.external_hit_tokens > 0) verdict_.saw(Overlap::kExternalHit);
  if (output.counters.preemptions > 0) verdict_.saw(Overlap::kPreemption);
  const std::size_t said = ticket.tokens.size() - ticket.planned.prompt.size();
  std::size_t told = 0;
  bool in_order = true;
  for (const WeightVersionSpan& span : output.weight_versions) {
    in_order = in_order && span.start == told && span.end > span.start;
    told = span.end;
  }
  if (!in_order || told != said) {
    verdict_.violation("versions", "the weight versions of request " + output.id +
                                       " do not cover its tokens one after the other");
  }
  if (output.status == RequestStatus::kFinishedError && !engine.crashed()) {
    verdict_.violation("requests", "request " + output.id + " failed: " + output.error);
  }
  if (output.status == RequestStatus::kFinishedLengthCapped && said != ticket.planned.max_tokens) {
    verdict_.violation("requests",
                       "request " + output.id + " ended with " + std::to_string(said) + " tokens");
  }
}

// Requests that may go on over this write are not judged any more.
void World::note_write(std::size_t number, bool announced) {
  for (const auto& ticket : tickets_) {
    if (ticket->replica != number || ticket->finished) continue;
    ticket->mixed = ticket->mixed || !announced || ticket->planned.continue_across_update ||
                    replica(number).keeps_requests();
  }
}

void World::lose_requests(std::size_t number) {
  std::erase_if(open_, [&](const auto& entry) {
    if (entry.first.first != number) return false;
    for (Ticket* ticket : entry.second) ticket->finished = true;
    return true;
  });
}

// --- oracles over time ---

void World::inspector() {
  for (int i = 0; i < 3; ++i) {
    kernel_.sleep_for(draw_duration(kernel_.random(), Duration{0}, plan_.faults_end / 3));
    oracle_.check_store(store_, replica(0).layout(), false);
  }
}

// Contract W4: another model's values, which nobody here may touch.
void World::seed_foreign_values() {
  const Scope scope{"another run", "another model", "another layout",
                    LabelIdentity{"step-" + std::to_string(plan_.seed)}};
  for (std::uint8_t i = 0; i < 3; ++i) {
    const Bytes payload(16, i);
    const Key key{scope.id(), {}, BlockHash(sha256(payload))};
    const ConstFragment whole(payload);
    const PutItem item{.key = key,
                       .header = make_header(key, layout_id(scope.layout), payload.size()),
                       .payload = {&whole, 1}};
    if (memory_store_.put({&item, 1}).front()) foreign_.push_back(key);
  }
}

std::uint64_t World::evicted_blocks() {
  const Result<StoreStats> stats = memory_store_.stats();
  return stats ? stats->evicted_blocks : 0;
}

void World::check_foreign_values() {
  if (evicted_blocks() > 0) verdict_.saw(Overlap::kEviction);
  if (plan_.remove_all || evicted_blocks() > 0) return;
  for (const Key& key : foreign_) {
    Bytes payload(16);
    const Fragment whole(payload);
    const GetItem item{.key = key, .payload = {&whole, 1}};
    if (!memory_store_.get({&item, 1}).front()) {
      verdict_.violation("W4", "another model's value is gone");
    }
  }
}

// --- the end ---

void World::stop_faults() {
  network_ = {.delay_max = plan_.network.delay_max};
  faulty_store_.clear_rules();
  store_.faults = {.call_max = plan_.store.call_max};
  kernel_.trace("faults end", {});
}

bool World::at_rest() const {
  return fibers_running_ == 0 && open_.empty() &&
         std::ranges::none_of(lives_, [](const auto& lives) { return lives.back()->has_work(); });
}

void World::come_to_rest() {
  const Time limit = kernel_.now() + kRestMax;
  while (!at_rest() && kernel_.now() < limit) kernel_.sleep_for(milliseconds(2));
  if (!at_rest()) {
    verdict_.violation("progress", std::to_string(open_.size()) + " requests and " +
                                       std::to_string(fibers_running_) +
                                       " callers still wait, long after the last fault");
    return;
  }
  for (std::size_t number = 0; number < lives_.size(); ++number) probe(number);
  while (!at_rest() && kernel_.now() < limit) kernel_.sleep_for(milliseconds(2));
  for (const auto& lives : lives_) lives.back()->check_at_rest();
  (void)faulty_store_.stats();  // puts that are late arrive now
  oracle_.check_store(store_, replica(0).layout(), true);
  check_foreign_values();
}

SeedResult World::result() const {
  SeedResult result;
  result.seed = plan_.seed;
  result.events = kernel_.event_count();
  result.requests = tickets_.size();
  for (const auto& lives : lives_) {
    for (const auto& life : lives) result.updates += life->update_count();
  }
  result.faults = verdict_.fault_count() + faulty_store_.faults();
  result.history_hash = kernel_.history_hash();
  result.violations = verdict_.violations();
  result.overlaps = verdict_.overlaps();
  return result;
}

}  // namespace newmoon::sim
