#include "store/fault_rule.h"

#include <charconv>
#include <limits>
#include <utility>

namespace newmoon {
namespace {

using Op = FaultRule::Op;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::unexpected<Error> bad(std::string_view rule, const std::string& why) {
  return fail(Code::kBadRequest, "faults: rule '" + std::string(rule) + "': " + why);
}

// Reads the fields of one rule; the first that is wrong ends it.
class RuleParser {
 public:
  explicit RuleParser(std::string_view text) : text_(text) {}

  Result<FaultRule> parse() {
    const std::vector<std::string_view> fields = split(text_, ':');
    if (Status op = parse_op(fields[0]); !op) return std::unexpected(op.error());
    for (std::size_t i = 1; i < fields.size(); ++i) {
      if (Status field = parse_field(fields[i]); !field) return std::unexpected(field.error());
    }
    if (Status fits = check(); !fits) return std::unexpected(fits.error());
    return std::move(rule_);
  }

 private:
  Status parse_op(std::string_view name) {
    constexpr std::pair<std::string_view, Op> kOps[] = {{"put", Op::kPut},
                                                        {"get", Op::kGet},
                                                        {"hit", Op::kHit},
                                                        {"purge", Op::kPurge},
                                                        {"ping", Op::kPing}};
    for (const auto& [known, op] : kOps) {
      if (name != known) continue;
      rule_.op = op;
      return {};
    }
    return bad(text_, "must start with put, get, hit, purge or ping");
  }

  Status parse_field(std::string_view field) {
    const std::size_t equals = field.find('=');
    const std::string_view name = field.substr(0, equals);
    const bool has_value = equals != std::string_view::npos;
    const std::string_view value = has_value ? field.substr(equals + 1) : std::string_view();
    if (bool* flag = flag_called(name)) {
      if (has_value) return bad(text_, std::string(name) + " takes no value");
      *flag = true;
      return {};
    }
    if (name == "fail") return parse_code(value);
    if (name == "when") return parse_when(value);
    return parse_number_field(name, value);
  }

  bool* flag_called(std::string_view name) {
    if (name == "marked") return &rule_.marked;
    if (name == "truncate") return &rule_.truncate;
    if (name == "corrupt") return &rule_.corrupt;
    return name == "drop" ? &rule_.drop : nullptr;
  }

  Status parse_number_field(std::string_view name, std::string_view value) {
    constexpr std::uint64_t kMany = std::numeric_limits<std::uint32_t>::max();
    if (name == "nth") return number(name, value, 1, kMany, rule_.nth);
    if (name == "every") return number(name, value, 1, kMany, rule_.every);
    if (name == "count") return number(name, value, 1, kMany, rule_.count);
    std::uint64_t parsed = 0;
    if (name == "rank") {
      Status read = number(name, value, 0, 65535, parsed);
      rule_.rank = static_cast<std::uint16_t>(parsed);
      return read;
    }
    if (name == "share") {
      Status read = number(name, value, 1, 100, parsed);
      rule_.share_percent = static_cast<unsigned>(parsed);
      return read;
    }
    if (name == "delay_ms" || name == "late_ms") {
      Status read = number(name, value, 1, 3'600'000, parsed);
      (name == "delay_ms" ? rule_.delay : rule_.late) = std::chrono::milliseconds(parsed);
      return read;
    }
    return bad(text_, "unknown field '" + std::string(name) +
                          "'; known are rank, nth, every, count, marked, share, fail, delay_ms, "
                          "when, late_ms, truncate, corrupt and drop");
  }

  Status number(std::string_view name, std::string_view value, std::uint64_t min, std::uint64_t max,
                std::uint64_t& out) {
    const char* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, out);
    if (error == std::errc() && at == end && out >= min && out <= max) return {};
    return bad(text_, std::string(name) + " needs a number from " + std::to_string(min) + " to " +
                          std::to_string(max) + ", not '" + std::string(value) + "'");
  }

  Status parse_code(std::string_view value) {
    const Code code = code_from_wire(value);
    if (value != traits(code).wire_name) {
      return bad(text_, "fail needs a code such as unavailable, deadline, busy or miss, not '" +
                            std::string(value) + "'");
    }
    rule_.fail = code;
    return {};
  }

  Status parse_when(std::string_view value) {
    if (value != "before" && value != "after") {
      return bad(text_, "when needs before or after, not '" + std::string(value) + "'");
    }
    rule_.when = value == "after" ? FaultRule::When::kAfter : FaultRule::When::kBefore;
    return {};
  }

  Status check() {
    const bool changes_payload = rule_.truncate || rule_.corrupt;
    const bool waits = rule_.delay > Duration::zero() || rule_.late > Duration::zero();
    const bool moves_payload = rule_.op == Op::kPut || rule_.op == Op::kGet;
    if (!rule_.fail && !rule_.drop && !changes_payload && !waits) {
      return bad(text_, "needs an effect: fail, delay_ms, late_ms, truncate, corrupt or drop");
    }
    if (rule_.late > Duration::zero() && rule_.op != Op::kPut) {
      return bad(text_, "late_ms is for put only");
    }
    if ((changes_payload || rule_.share_percent != 100) && !moves_payload) {
      return bad(text_, "truncate, corrupt and share are for put and get only");
    }
    const bool has_rank = moves_payload || rule_.op == Op::kHit;
    if (rule_.rank && !has_rank) return bad(text_, "rank is for put, get and hit only");
    if (rule_.drop && rule_.op == Op::kPing) return bad(text_, "a ping has nothing to drop");
    if (rule_.nth != 0 && rule_.every != 1) return bad(text_, "nth and every exclude each other");
    return {};
  }

  std::string_view text_;
  FaultRule rule_;
};

}  // namespace

Result<std::vector<FaultRule>> parse_fault_rules(std::string_view spec) {
  std::vector<FaultRule> rules;
  for (const std::string_view text : split(spec, ',')) {
    Result<FaultRule> rule = RuleParser(text).parse();
    if (!rule) return std::unexpected(rule.error());
    rules.push_back(std::move(*rule));
  }
  return rules;
}

}  // namespace newmoon
