#include "cli/fault_spec.h"

#include <sstream>

namespace newmoon {

Result<FaultSpec> parse_fault_spec(const std::string& spec) {
  FaultSpec faults;
  std::istringstream rules(spec);
  for (std::string rule; std::getline(rules, rule, ',');) {
    if (is_transport_rule(rule)) {
      const Result<TransportFaultRule> parsed = parse_transport_rule(rule);
      if (!parsed) return std::unexpected(parsed.error());
      faults.transport.push_back(*parsed);
      continue;
    }
    const Result<std::vector<FaultRule>> parsed = parse_fault_rules(rule);
    if (!parsed) return std::unexpected(parsed.error());
    faults.store.insert(faults.store.end(), parsed->begin(), parsed->end());
  }
  return faults;
}

}  // namespace newmoon
