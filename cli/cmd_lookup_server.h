// `newmoon lookup-server`: one rank's server alone, for interoperation with vLLM's
// and the seed's clients.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "hash/block_hash.h"

namespace newmoon {

struct LookupServerOptions {
  std::string endpoint;      // ipc://PATH
  std::string preload_path;  // block hashes in hex, a line each
  int block_size = 16;       // tokens
};

// kBadRequest: the file cannot be read, or a line (named) is not 1 to 32 bytes in hex.
// Empty lines are skipped.
Result<std::vector<BlockHash>> read_preload(const std::string& path);

// Serves until SIGTERM or SIGINT, then 0; 2 with a line on stderr if it cannot start.
// Blocks those signals in the calling thread and the threads it starts.
int run_lookup_server(const LookupServerOptions& options);

}  // namespace newmoon
