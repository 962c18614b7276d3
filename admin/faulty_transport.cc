#include "admin/faulty_transport.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "admin/protocol.h"

namespace newmoon {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOps = {{
    {"send_lookup", SCOPED_LOOKUP_MSG},
    {"send_fence", FENCE_MSG},
    {"send_reset", SCOPED_RESET_MSG},
    {"send_ping", PING_MSG},
    {"send_drain", DRAIN_MSG},
}};

std::string_view take_field(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(':'), rest.size());
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return field;
}

auto find_op(std::string_view rule) {
  const std::string_view op = take_field(rule);
  return std::ranges::find(kOps, op, [](const auto& known) { return known.first; });
}

std::optional<std::uint64_t> number_after(std::string_view field, std::string_view name) {
  if (!field.starts_with(name)) return std::nullopt;
  field.remove_prefix(name.size());
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || end != field.data() + field.size()) return std::nullopt;
  return value;
}

bool apply_field(std::string_view field, TransportFaultRule& rule) {
  if (field == "drop") {
    rule.drop = true;
  } else if (const auto rank = number_after(field, "rank=")) {
    rule.rank = rank;
  } else if (const auto nth = number_after(field, "nth="); nth && *nth > 0) {
    rule.nth = *nth;
  } else if (const auto every = number_after(field, "every="); every && *every > 0) {
    rule.every = *every;
  } else if (const auto delay = number_after(field, "delay_ms=")) {
    rule.delay = std::chrono::milliseconds(*delay);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool is_transport_rule(std::string_view rule) { return find_op(rule) != kOps.end(); }

Result<TransportFaultRule> parse_transport_rule(std::string_view text) {
  const auto op = find_op(text);
  if (op == kOps.end()) {
    return fail(Code::kBadRequest,
                "fault rule '" + std::string(text) +
                    "' starts with no known operation; see docs/verification.md");
  }
  TransportFaultRule rule{.tag = std::string(op->second)};
  std::string_view rest = text;
  take_field(rest);
  while (!rest.empty()) {
    const std::string_view field = take_field(rest);
    if (apply_field(field, rule)) continue;
    return fail(Code::kBadRequest, "fault rule '" + std::string(text) + "': '" +
                                       std::string(field) + "' is no field of it");
  }
  if (!rule.drop && rule.delay == Duration{0}) {
    return fail(Code::kBadRequest,
                "fault rule '" + std::string(text) + "' has no effect; add drop or delay_ms=N");
  }
  return rule;
}

FaultyTransport::FaultyTransport(std::unique_ptr<ClientTransport> inner,
                                 std::vector<TransportFaultRule> rules, Clock& clock)
    : inner_(std::move(inner)), clock_(clock) {
  for (TransportFaultRule& rule : rules) rules_.push_back({.rule = std::move(rule)});
}

Status FaultyTransport::send(std::size_t peer, const Frames& frames) {
  send_due();
  const TransportFaultRule* fault = fault_of(peer, frames);
  if (fault == nullptr) return inner_->send(peer, frames);
  if (!fault->drop) late_.push_back({clock_.now() + fault->delay, peer, frames});
  return {};
}

std::optional<std::pair<std::size_t, Frames>> FaultyTransport::receive() {
  send_due();
  return inner_->receive();
}

bool FaultyTransport::wait(Time deadline) {
  while (true) {
    send_due();
    const Time until = std::min(deadline, next_due().value_or(deadline));
    if (inner_->wait(until)) return true;
    if (until == deadline) return false;
  }
}

void FaultyTransport::reopen(std::size_t peer) {
  std::erase_if(late_, [peer](const Late& late) { return late.peer == peer; });
  inner_->reopen(peer);
}

const TransportFaultRule* FaultyTransport::fault_of(std::size_t peer, const Frames& frames) {
  const TransportFaultRule* fault = nullptr;
  for (Armed& armed : rules_) {
    const TransportFaultRule& rule = armed.rule;
    if (frames.empty() || as_text(frames[0]) != rule.tag) continue;
    if (rule.rank.value_or(peer) != peer) continue;
    ++armed.messages;
    const bool is_due = rule.nth == 0 || armed.messages == rule.nth;
    if (is_due && armed.messages % rule.every == 0 && fault == nullptr) fault = &rule;
  }
  return fault;
}

void FaultyTransport::send_due() {
  const Time now = clock_.now();
  std::erase_if(late_, [&](const Late& late) {
    // A message that cannot be sent any more is one more that was lost.
    return late.due <= now && (inner_->send(late.peer, late.frames), true);
  });
}

std::optional<Time> FaultyTransport::next_due() const {
  const auto first = std::ranges::min_element(late_, {}, &Late::due);
  return first == late_.end() ? std::nullopt : std::optional(first->due);
}

}  // namespace newmoon
