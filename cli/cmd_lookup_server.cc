#include "cli/cmd_lookup_server.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>

#include "cli/commands.h"
#include "cli/lone_rank.h"
#include "cli/stop_signals.h"

namespace newmoon {
namespace {

Result<BlockHash> parse_hash(const std::string& line) {
  std::array<std::uint8_t, BlockHash::kMaxSize> bytes;
  const std::size_t size = line.size() / 2;
  if (size == 0 || size > bytes.size() || !from_hex(line, MutableByteView(bytes).first(size))) {
    return fail(Code::kBadRequest, "not a block hash of 1 to 32 bytes in hex");
  }
  return BlockHash(ByteView(bytes).first(size));
}

int fail_start(const Error& error) {
  std::fprintf(stderr, "newmoon lookup-server: %s\n", error.message.c_str());
  return 2;
}

}  // namespace

Result<std::vector<BlockHash>> read_preload(const std::string& path) {
  std::ifstream file(path);
  std::vector<BlockHash> hashes;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (line.empty()) continue;
    const Result<BlockHash> hash = parse_hash(line);
    if (!hash) {
      return fail(Code::kBadRequest,
                  path + ", line " + std::to_string(number) + ": " + hash.error().message);
    }
    hashes.push_back(*hash);
  }
  if (!file.eof()) return fail(Code::kBadRequest, "cannot read the preload file " + path);
  return hashes;
}

int run_lookup_server(const LookupServerOptions& options) {
  const Result<std::vector<BlockHash>> preload = read_preload(options.preload_path);
  if (!preload) return fail_start(preload.error());
  const StopSignals signals;
  const auto rank = LoneRank::start(options.endpoint, options.block_size, *preload);
  if (!rank) return fail_start(rank.error());
  std::printf("serving %zu block hashes on %s\n", preload->size(), options.endpoint.c_str());
  std::fflush(stdout);
  signals.wait();
  return 0;
}

void add_lookup_server_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<LookupServerOptions>();
  CLI::App* command = app.add_subcommand(
      "lookup-server", "Serve one rank's lookup/admin channel alone, e.g. for vLLM's client");
  command->add_option("--endpoint", options->endpoint, "ipc://PATH")->required();
  command->add_option("--preload", options->preload_path, "Block hashes in hex, a line each")
      ->required();
  command->add_option("--block-size", options->block_size, "Tokens a block")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run_lookup_server(*options); });
}

}  // namespace newmoon
