// How a Mooncake store is reached and what this process lends to it: from a URL, or from
// the JSON file that vLLM's connector reads (MOONCAKE_CONFIG_PATH).
//
// The URL's options and the file's fields have the same names and syntax. Sources: vLLM
// 0.32 `MooncakeStoreConfig`, Mooncake 0.3.13 `mooncake_config.py`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace newmoon {

struct MooncakeConfig {
  std::string master_server_address;  // HOST:PORT of the master's RPC
  // HTTP of the master, on the same host. Option `metrics_port`; upstream's default.
  std::uint16_t metrics_port = 9003;
  // What the master was started with, under the same names; its defaults. After the first it
  // lets others begin a put anew that was begun and not ended, after the second such a put
  // cannot end any more.
  std::chrono::seconds put_start_discard_timeout{30};   // `put_start_discard_timeout_sec`
  std::chrono::seconds put_start_release_timeout{600};  // `put_start_release_timeout_sec`

  std::string local_hostname;  // by which other clients reach this one's memory
  std::string metadata_server = "P2PHANDSHAKE";
  std::string protocol = "tcp";
  std::string device_name;
  std::string tenant_id = "default";
  // What this process lends to the store; 0: nothing. Mapped, not touched, at the start.
  std::uint64_t global_segment_bytes = std::uint64_t{4} << 30;  // `global_segment_size`
  std::uint64_t local_buffer_bytes = std::uint64_t{4} << 30;    // `local_buffer_size`

  std::string metrics_address() const;  // HOST:PORT of the master's HTTP
};

// `mooncake://HOST:PORT[?option=value&...]`. Options: local_hostname, metadata_server,
// protocol, device_name, tenant_id, global_segment_size, local_buffer_size, metrics_port,
// put_start_discard_timeout_sec, put_start_release_timeout_sec; %XX in a value is decoded. Without
// HOST:PORT the file that MOONCAKE_CONFIG_PATH names is read first, and the options count more.
//
// A local_hostname that neither gives is upstream's MOONCAKE_REQUESTER_LOCAL_HOSTNAME, else
// the address from which this machine reaches the master.
//
// kBadRequest: names the option or field and says what it takes. kUnavailable: the file
// cannot be read, or the master's host has no address.
Result<MooncakeConfig> load_mooncake_config(const std::string& url);

// The file's text; `name` stands in errors. Defaults are vLLM's, where they differ from
// those above: protocol "rdma". Fields beside the options: master_server_address
// (required), mode ("embedded"; "standalone-store" lends nothing). An SSD tier and a
// client's own HTTP server are refused: the first outlives a reset, the second nobody asks.
// Other fields are ignored, as upstream does, with a warning in the log.
Result<MooncakeConfig> parse_mooncake_json(const std::string& text, const std::string& name);

// Bytes of "4GB", "1.5 gb", "512m", "4096": a number and a binary unit, as upstream reads
// it. kBadRequest otherwise, or when it does not fit.
Result<std::uint64_t> parse_size_bytes(const std::string& text);

}  // namespace newmoon
