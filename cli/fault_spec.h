// `--faults SPEC`: a comma list of rules for the store (store/fault_rule.h) and for the
// transport to the ranks (admin/faulty_transport.h).
#pragma once

#include <string>
#include <vector>

#include "admin/faulty_transport.h"
#include "store/fault_rule.h"

namespace newmoon {

struct FaultSpec {
  std::vector<FaultRule> store;
  std::vector<TransportFaultRule> transport;
};

// kBadRequest: names the rule and the field. An empty spec holds no rule.
Result<FaultSpec> parse_fault_spec(const std::string& spec);

}  // namespace newmoon
