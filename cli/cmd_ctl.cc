// `newmoon ctl`: an admin command to one rank of a running engine, over its lookup/admin
// socket.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "admin/lookup_key_client.h"
#include "base/ipc_path.h"
#include "base/shell_command.h"
#include "base/zmq_transport.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/scope_report.h"
#include "store/ipc_wire.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

struct CtlOptions {
  std::string endpoint;
  double timeout_s = 5;
  bool json = false;
  std::shared_ptr<SelectionOptions> selection = std::make_shared<SelectionOptions>();
};

// What a store is asked by, instead of an engine.
std::string advice_for_store(const CtlOptions& options, std::string_view command) {
  if (command != "purge") {
    return "`" + shell_command({"newmoon", "scopes", "--store", options.endpoint}) +
           "` looks into it";
  }
  const SelectionOptions& selection = *options.selection;
  const bool by_scope = selection.name_space.empty();
  return "`" +
         shell_command({"newmoon", "purge", "--store", options.endpoint,
                        by_scope ? "--scope" : "--namespace",
                        by_scope ? selection.scope : selection.name_space}) +
         "` purges it";
}

Status check_greeting(const Frames& answer, const CtlOptions& options, std::string_view command) {
  if (peek_reply_id(answer)) return {};
  const std::string& endpoint = options.endpoint;
  if (!answer.empty() && ipc::decode_head(answer[0])) {
    return fail(Code::kBadRequest, endpoint + " is the socket of a store, not of an engine: " +
                                       advice_for_store(options, command));
  }
  return fail(Code::kBadRequest, endpoint + " answers, but not as an engine of newmoon does");
}

// Whether an engine's rank serves the socket: of somebody else, who does not understand a
// question, the answer to it would never be known. kDeadline: nobody answers.
Status greet(ClientTransport& transport, const CtlOptions& options, std::string_view command,
             Time deadline) {
  const Frames ping = encode_request(0, Request{.body = PingRequest()});
  if (Status sent = transport.send(0, ping); !sent) return sent;
  while (transport.wait(deadline)) {
    if (const auto answer = transport.receive())
      return check_greeting(answer->second, options, command);
  }
  return fail(Code::kDeadline, options.endpoint + " does not answer");
}

class Ctl {
 public:
  Ctl(const CtlOptions& options, ClientTransport& transport, Clock& clock)
      : options_(options), clock_(clock), client_(transport, clock, {}) {}

  Time deadline() const {
    return clock_.now() +
           std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options_.timeout_s));
  }

  Status ping() {
    const auto answer = client_.ping(deadline());
    if (!answer.ranks.at(0).ack) return std::unexpected(answer.ranks[0].ack.error());
    std::printf("alive, floor %llu\n",
                static_cast<unsigned long long>(answer.ranks[0].ack->fence.floor));
    return {};
  }

  Status fence() {
    const Result<FenceAck> ack = client_.weights_written(0, deadline());
    if (!ack) return std::unexpected(ack.error());
    std::printf("fenced, floor %llu; the next step opens a new scope, unless an update seals it\n",
                static_cast<unsigned long long>(ack->floor));
    return {};
  }

  Status stats() {
    const Result<RankStats> stats = client_.stats(0, deadline());
    if (!stats) return std::unexpected(stats.error());
    nlohmann::ordered_json json;
    visit_figures(*stats, [&](std::string_view name, std::uint64_t figure) {
      json[std::string(name)] = figure;
      if (!options_.json) {
        std::printf("%-26s %llu\n", std::string(name).c_str(),
                    static_cast<unsigned long long>(figure));
      }
    });
    json["store_error"] = stats->store_error;
    if (options_.json) std::printf("%s\n", json.dump(2).c_str());
    if (!options_.json && !stats->store_error.empty()) {
      std::printf("%-26s %s\n", "store_error", stats->store_error.c_str());
    }
    return {};
  }

  Status scopes() {
    const Result<std::vector<ScopeUsage>> scopes = client_.scopes(0, deadline());
    if (!scopes) return std::unexpected(scopes.error());
    if (options_.json) {
      std::printf("%s\n",
                  scopes_json(*scopes).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    } else {
      print_scopes(*scopes);
    }
    return {};
  }

  Status purge() {
    const auto selection = to_selection(*options_.selection, command_line("scopes"));
    if (!selection) return std::unexpected(selection.error());
    Result<std::vector<ScopeUsage>> scopes = client_.scopes(0, deadline());
    if (!scopes) return std::unexpected(scopes.error());
    const auto selected = select_scopes(std::move(*scopes), *selection);
    const Error nothing = not_there(*selection, command_line("scopes"));
    if (selected.empty()) return std::unexpected(nothing);
    if (Status wanted = confirm_purge(selected, options_.selection->yes); !wanted) return wanted;
    const Result<PurgeAck> ack = client_.purge(0, *selection, deadline());
    if (!ack) return std::unexpected(ack.error().code == Code::kMiss ? nothing : ack.error());
    std::printf("purging %llu scopes, %llu blocks; `%s` tells how it goes\n",
                static_cast<unsigned long long>(ack->scopes),
                static_cast<unsigned long long>(ack->blocks), command_line("stats").c_str());
    return {};
  }

 private:
  std::string command_line(std::string_view command) const {
    return shell_command({"newmoon", "ctl", "--endpoint", options_.endpoint, command});
  }

  const CtlOptions& options_;
  Clock& clock_;
  LookupKeyClient client_;
};

int run_ctl(const CtlOptions& options, std::string_view name, Status (Ctl::*command)()) {
  SystemClock clock;
  const Result<std::string> path = parse_ipc_endpoint(options.endpoint);
  if (!path) return report_failure("ctl", path.error());
  if (!somebody_listens(*path)) {
    return report_failure("ctl", {Code::kUnavailable, "nobody listens at " + options.endpoint +
                                                          "; is the engine running?"});
  }
  auto transport = ZmqClientTransport::connect({options.endpoint}, clock);
  if (!transport) return report_failure("ctl", transport.error());
  Ctl ctl(options, **transport, clock);
  const Status greeted = greet(**transport, options, name, ctl.deadline());
  if (!greeted) return report_failure("ctl", greeted.error());
  const Status done = (ctl.*command)();
  if (done) return 0;
  Error error = done.error();
  if (error.code == Code::kDeadline) error.message = options.endpoint + " does not answer";
  return report_failure("ctl", error);
}

}  // namespace

void add_ctl_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CtlOptions>();
  CLI::App* ctl = app.add_subcommand("ctl", "Ask one rank of a running engine");
  ctl->add_option("--endpoint", options->endpoint, "ipc://PATH of the rank's socket")->required();
  ctl->add_option("--timeout-s", options->timeout_s, "seconds to wait for the answer")
      ->check(seconds_in(0.1, 3600))
      ->capture_default_str();
  ctl->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, Status (Ctl::*run)()) {
    CLI::App* command = ctl->add_subcommand(name, what);
    command->footer("Takes --endpoint and --timeout-s as well: see newmoon ctl --help");
    command->callback(
        [options, name, run, &exit_code] { exit_code = run_ctl(*options, name, run); });
    return command;
  };
  add("ping", "whether it answers, and its floor", &Ctl::ping);
  add("fence", "treat its weights as written", &Ctl::fence);
  add("stats", "its figures, and the store's", &Ctl::stats)
      ->add_flag("--json", options->json, "one JSON document");
  add("scopes", "what its store holds", &Ctl::scopes)
      ->add_flag("--json", options->json, "one JSON document");
  add_selection_options(*add("purge", "remove scopes that nobody uses", &Ctl::purge),
                        options->selection);
}

}  // namespace newmoon
