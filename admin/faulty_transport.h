// A transport that goes wrong as told, around one that does not: for tests and for
// `newmoon rollout --faults`. Rules as text, in the manner of store/fault_rule.h:
//
//   RULE   = OP { ":" FIELD }
//   OP     = "send_lookup" | "send_fence" | "send_reset" | "send_ping" | "send_drain"
//   FIELD  = "rank=" N      messages to rank N only
//          | "nth=" N       the N-th such message, counted from 1
//          | "every=" N     each N-th one
//          | "drop"         it is never sent
//          | "delay_ms=" N  it is sent N ms later, before the first call after that
//
// One thread, as the transport within.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/transport.h"

namespace newmoon {

struct TransportFaultRule {
  std::string tag;  // frame 0 of the messages it is about
  std::optional<std::size_t> rank = std::nullopt;
  std::uint64_t nth = 0;  // 0: any
  std::uint64_t every = 1;
  bool drop = false;
  Duration delay{0};
};

// Whether a rule is one for a transport, by its OP.
bool is_transport_rule(std::string_view rule);
// kBadRequest: names the rule and the field.
Result<TransportFaultRule> parse_transport_rule(std::string_view rule);

class FaultyTransport final : public ClientTransport {
 public:
  FaultyTransport(std::unique_ptr<ClientTransport> inner, std::vector<TransportFaultRule> rules,
                  Clock& clock);

  std::size_t peer_count() const override { return inner_->peer_count(); }
  Status send(std::size_t peer, const Frames& frames) override;
  std::optional<std::pair<std::size_t, Frames>> receive() override;
  bool wait(Time deadline) override;
  void reopen(std::size_t peer) override;

 private:
  struct Armed {
    TransportFaultRule rule;
    std::uint64_t messages = 0;  // that matched
  };
  struct Late {
    Time due{};
    std::size_t peer = 0;
    Frames frames;
  };

  const TransportFaultRule* fault_of(std::size_t peer, const Frames& frames);
  void send_due();
  std::optional<Time> next_due() const;

  const std::unique_ptr<ClientTransport> inner_;
  Clock& clock_;
  std::vector<Armed> rules_;
  std::vector<Late> late_;
};

}  // namespace newmoon
