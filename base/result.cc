#include "base/result.h"

#include <array>

namespace newmoon {
namespace {

// Indexed by Code.
constexpr std::array<CodeTraits, 8> kTraits = {{
    {"miss", 404, ConnectorAction::kRecompute},
    {"bad_request", 400, ConnectorAction::kFailCaller},
    {"unavailable", 503, ConnectorAction::kRecompute},
    {"deadline", 504, ConnectorAction::kRecompute},
    {"busy", 429, ConnectorAction::kDrop},
    {"corrupt", 502, ConnectorAction::kRecompute},
    {"fenced", 409, ConnectorAction::kRefence},
    {"internal", 500, ConnectorAction::kFailCaller},
}};

}  // namespace

const CodeTraits& traits(Code code) { return kTraits[static_cast<std::size_t>(code)]; }

Code code_from_wire(std::string_view wire_name) {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (kTraits[i].wire_name == wire_name) return static_cast<Code>(i);
  }
  return Code::kInternal;
}

std::string to_string(const Error& error) {
  return std::string(traits(error.code).wire_name) + ": " + error.message;
}

}  // namespace newmoon
