#include "store/mooncake/config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/log.h"
#include "store/mooncake/local_address.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kScheme = "mooncake://";
constexpr std::uintmax_t kConfigBytesMax = 1 << 20;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

// What it is: "port", say.
Result<int> parse_number(const std::string& text, const std::string& what, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > most) {
    return fail(Code::kBadRequest,
                "'" + text + "' is no " + what + " (1 to " + std::to_string(most) + ")");
  }
  return number;
}

Result<int> parse_port(const std::string& text) { return parse_number(text, "port", 65535); }

// HOST of HOST:PORT, or of [HOST]:PORT with the brackets; nothing if it is neither.
std::optional<std::string> host_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == address.npos || colon == 0 || !parse_port(address.substr(colon + 1))) return {};
  std::string host = address.substr(0, colon);
  const bool bracketed = host.front() == '[' && host.back() == ']';
  if (!bracketed && host.find_first_of(":[]/@ ") != host.npos) return {};
  return host;
}

// One option of the URL, or one field of the file.
struct Field {
  std::string_view name;
  bool takes_number;  // in JSON; text always may stand for it
  Status (*set)(MooncakeConfig& config, const std::string& value);
};

template <std::string MooncakeConfig::* member>
Status set_text(MooncakeConfig& config, const std::string& value) {
  if (trim(value).empty()) return fail(Code::kBadRequest, "must not be empty");
  config.*member = trim(value);
  return {};
}

template <std::uint64_t MooncakeConfig::* member>
Status set_bytes(MooncakeConfig& config, const std::string& value) {
  const Result<std::uint64_t> bytes = parse_size_bytes(value);
  if (!bytes) return std::unexpected(bytes.error());
  config.*member = *bytes;
  return {};
}

Status set_local_buffer(MooncakeConfig& config, const std::string& value) {
  if (Status set = set_bytes<&MooncakeConfig::local_buffer_bytes>(config, value); !set) return set;
  if (config.local_buffer_bytes == 0) return fail(Code::kBadRequest, "must be more than 0");
  return {};
}

// The engine compares protocols in lower case; which it knows is its own to say.
Status set_protocol(MooncakeConfig& config, const std::string& value) {
  return set_text<&MooncakeConfig::protocol>(config, lower(value));
}

Status set_device(MooncakeConfig& config, const std::string& value) {
  config.device_name = trim(value);  // empty: the engine looks for itself
  return {};
}

// vLLM's default is empty, which means the same.
Status set_metadata_server(MooncakeConfig& config, const std::string& value) {
  config.metadata_server = trim(value).empty() ? "P2PHANDSHAKE" : trim(value);
  return {};
}

Status set_metrics_port(MooncakeConfig& config, const std::string& value) {
  const Result<int> port = parse_port(value);
  if (!port) return std::unexpected(port.error());
  config.metrics_port = static_cast<std::uint16_t>(*port);
  return {};
}

template <std::chrono::seconds MooncakeConfig::* member>
Status set_seconds(MooncakeConfig& config, const std::string& value) {
  const Result<int> seconds = parse_number(value, "number of seconds", 86400);
  if (!seconds) return std::unexpected(seconds.error());
  config.*member = std::chrono::seconds(*seconds);
  return {};
}

Status set_master(MooncakeConfig& config, const std::string& value) {
  if (!host_of(value)) return fail(Code::kBadRequest, "'" + value + "' is not HOST:PORT");
  config.master_server_address = value;
  return {};
}

constexpr std::array<Field, 10> kOptions = {{
    {"local_hostname", false, set_text<&MooncakeConfig::local_hostname>},
    {"metadata_server", false, set_metadata_server},
    {"protocol", false, set_protocol},
    {"device_name", false, set_device},
    {"tenant_id", true, set_text<&MooncakeConfig::tenant_id>},
    {"global_segment_size", true, set_bytes<&MooncakeConfig::global_segment_bytes>},
    {"local_buffer_size", true, set_local_buffer},
    {"metrics_port", true, set_metrics_port},
    {"put_start_discard_timeout_sec", true,
     set_seconds<&MooncakeConfig::put_start_discard_timeout>},
    {"put_start_release_timeout_sec", true,
     set_seconds<&MooncakeConfig::put_start_release_timeout>},
}};

const Field* find_option(std::string_view name) {
  const auto* option = std::ranges::find(kOptions, name, &Field::name);
  return option == kOptions.end() ? nullptr : option;
}

std::string option_names() {
  std::string names;
  for (const Field& option : kOptions) {
    names += (names.empty() ? "" : ", ") + std::string(option.name);
  }
  return names;
}

std::unexpected<Error> bad(const std::string& where, std::string_view field, const Error& error) {
  return fail(error.code, where + ": " + std::string(field) + ": " + error.message);
}

// ---- URL

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char small = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

Result<std::string> percent_decode(const std::string& text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) return fail(Code::kBadRequest, "'" + text + "' has a % without two hex digits");
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

Status set_option(MooncakeConfig& config, const std::string& part) {
  const std::size_t equals = part.find('=');
  const std::string name = part.substr(0, equals);
  const Field* option = find_option(name);
  if (option == nullptr) {
    return fail(Code::kBadRequest,
                "store URL: unknown option '" + name + "'; there are " + option_names());
  }
  const Result<std::string> value =
      percent_decode(equals == part.npos ? "" : part.substr(equals + 1));
  if (!value) return bad("store URL", name, value.error());
  if (const Status set = option->set(config, *value); !set) {
    return bad("store URL", name, set.error());
  }
  return {};
}

Status set_options(MooncakeConfig& config, std::string_view query) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    if (const Status set = set_option(config, std::string(query.substr(0, end))); !set) return set;
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return {};
}

// ---- JSON

Result<std::string> text_of(const Field& field, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (field.takes_number && value.is_number_unsigned()) {
    return std::to_string(value.get<std::uint64_t>());
  }
  return fail(Code::kBadRequest,
              std::string("must be ") + (field.takes_number ? "a whole number or text" : "text") +
                  ", not " + value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

Status set_field(MooncakeConfig& config, const Field& field, const Json& value) {
  const Result<std::string> text = text_of(field, value);
  if (!text) return std::unexpected(text.error());
  return field.set(config, *text);
}

// As upstream reads a flag: true, or a word or number for it.
bool is_on(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (!value.is_string()) return false;
  constexpr std::array<std::string_view, 5> kWords = {"true", "1", "yes", "on", "enable"};
  return std::ranges::find(kWords, lower(trim(value.get<std::string>()))) != kWords.end();
}

Status check_not_supported(const std::string& name, const Json& value) {
  if (!is_on(value)) return {};
  return fail(Code::kBadRequest, name == "enable_client_http_server"
                                     ? "is not supported; /metrics of Newmoon has the figures"
                                     : "is not supported: what lies on SSD outlives a reset");
}

// Fields that are not options; false if upstream has no such field either.
Result<bool> check_other_field(const std::string& name, const Json& value) {
  if (name == "enable_offload" || name == "enable_ssd_offload" ||
      name == "enable_client_http_server") {
    if (const Status ok = check_not_supported(name, value); !ok) return std::unexpected(ok.error());
    return true;
  }
  if (name == "mode" && value != "embedded" && value != "standalone-store") {
    return fail(Code::kBadRequest, "must be \"embedded\" or \"standalone-store\"");
  }
  return name == "mode" || name == "ssd_offload_path" || name == "client_http_port";
}

Status read_field(MooncakeConfig& config, const std::string& where, const std::string& name,
                  const Json& value) {
  constexpr Field kMaster = {"master_server_address", false, set_master};
  const Field* field = name == kMaster.name ? &kMaster : find_option(name);
  if (field != nullptr) {
    const Status set = set_field(config, *field, value);
    return set ? Status() : bad(where, name, set.error());
  }
  const Result<bool> known = check_other_field(name, value);
  if (!known) return bad(where, name, known.error());
  if (!*known) {
    log(LogLevel::kWarning, "mooncake", where + ": unknown field '" + name + "' is ignored");
  }
  return {};
}

// Upstream's rule of what the two modes lend.
Status check_mode(MooncakeConfig& config, const Json& file) {
  const bool lends = file.value("mode", Json("embedded")) == "embedded";
  if (!lends && !file.contains("global_segment_size")) config.global_segment_bytes = 0;
  if (lends == (config.global_segment_bytes > 0)) return {};
  return fail(Code::kBadRequest, lends ? "must be more than 0 in mode embedded"
                                       : "must be 0 in mode standalone-store");
}

Result<MooncakeConfig> read_config_file() {
  const char* path = std::getenv("MOONCAKE_CONFIG_PATH");
  if (path == nullptr || *path == '\0') {
    return fail(Code::kBadRequest,
                "store URL mooncake:// names no master and MOONCAKE_CONFIG_PATH is not set; write "
                "mooncake://HOST:PORT");
  }
  // A folder throws when it is read, a pipe may hold up whoever opens it.
  std::error_code ignored;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, ignored) &&
      std::filesystem::file_size(path, ignored) <= kConfigBytesMax) {
    file.open(path, std::ios::binary);
  }
  if (!file.is_open()) {
    return fail(Code::kUnavailable, "cannot read " + std::string(path) +
                                        " (MOONCAKE_CONFIG_PATH): no readable file of at most " +
                                        std::to_string(kConfigBytesMax >> 20) + " MiB");
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_mooncake_json(text, path);
}

Result<MooncakeConfig> read_address(const std::string& address) {
  if (address.empty()) return read_config_file();
  MooncakeConfig config;
  if (const Status set = set_master(config, address); !set) {
    return fail(Code::kBadRequest, "store URL: " + set.error().message +
                                       "; write mooncake://HOST:PORT (a master's own default is "
                                       "port 50051)");
  }
  return config;
}

Status find_local_hostname(MooncakeConfig& config) {
  if (!config.local_hostname.empty()) return {};
  if (const char* name = std::getenv("MOONCAKE_REQUESTER_LOCAL_HOSTNAME");
      name != nullptr && *name != '\0') {
    config.local_hostname = name;
    return {};
  }
  Result<std::string> address = local_address_towards(*host_of(config.master_server_address));
  if (!address) return std::unexpected(address.error());
  config.local_hostname = std::move(*address);
  return {};
}

}  // namespace

std::string MooncakeConfig::metrics_address() const {
  const std::string host = master_server_address.substr(0, master_server_address.rfind(':'));
  return host + ":" + std::to_string(metrics_port);
}

Result<std::uint64_t> parse_size_bytes(const std::string& text) {
  constexpr std::string_view kUnits = "bkmgt";
  std::string number = lower(trim(text));
  std::uint64_t unit_bytes = 1;
  if (number.size() > 1 && number.back() == 'b' && kUnits.find(number.end()[-2]) != kUnits.npos) {
    number.pop_back();
  }
  if (!number.empty() && kUnits.find(number.back()) != kUnits.npos) {
    unit_bytes = std::uint64_t{1} << (10 * kUnits.find(number.back()));
    number = trim(std::string_view(number).substr(0, number.size() - 1));
  }
  double value = 0;
  const char* end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, value, std::chars_format::fixed);
  const double bytes = value * static_cast<double>(unit_bytes);
  if (error != std::errc() || stop != end || !(bytes >= 0) || bytes > std::pow(2.0, 53)) {
    return fail(Code::kBadRequest, "'" + text + "' is no size; write e.g. 4GB, 512MB or bytes");
  }
  return static_cast<std::uint64_t>(bytes);
}

Result<MooncakeConfig> parse_mooncake_json(const std::string& text, const std::string& name) {
  const Json file = Json::parse(text, nullptr, false);
  if (!file.is_object()) return fail(Code::kBadRequest, name + " is not a JSON object");
  MooncakeConfig config;
  config.protocol = "rdma";
  for (const auto& [field, value] : file.items()) {
    if (const Status read = read_field(config, name, field, value); !read) {
      return std::unexpected(read.error());
    }
  }
  if (config.master_server_address.empty()) {
    return fail(Code::kBadRequest, name + ": master_server_address is missing (HOST:PORT)");
  }
  if (const Status ok = check_mode(config, file); !ok) {
    return bad(name, "global_segment_size", ok.error());
  }
  return config;
}

Result<MooncakeConfig> load_mooncake_config(const std::string& url) {
  if (!url.starts_with(kScheme)) {
    return fail(Code::kBadRequest, "store '" + url + "' does not begin with mooncake://");
  }
  const std::size_t question = std::min(url.find('?'), url.size());
  Result<MooncakeConfig> config =
      read_address(url.substr(kScheme.size(), question - kScheme.size()));
  if (!config) return config;
  const std::string query = url.substr(std::min(question + 1, url.size()));
  if (const Status set = set_options(*config, query); !set) return std::unexpected(set.error());
  if (const Status found = find_local_hostname(*config); !found) {
    return std::unexpected(found.error());
  }
  return config;
}

}  // namespace newmoon
