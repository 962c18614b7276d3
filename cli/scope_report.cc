#include "cli/scope_report.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "hash/scope_text.h"
#include "store/make_store.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kMooncake = "mooncake://";

std::string holders_text(const ScopeUsage& usage) {
  if (usage.holders.empty()) return "-";
  std::string text = usage.holders.front();
  if (usage.holders.size() > 1) text += " +" + std::to_string(usage.holders.size() - 1);
  return text;
}

// What another process wrote must not move the cursor, nor end a line.
std::string printable(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // The second half of the control characters, in UTF-8.
    const bool high = c >= 0x80 && c < 0xa0 && i > 0 && text[i - 1] == '\xc2';
    if (high) text[i - 1] = '?';
    if (c < ' ' || c == 0x7f || high) text[i] = '?';
  }
  return text;
}

void add_line(std::string& text, std::string_view name, const std::string& value) {
  text += "    " + std::string(name) + std::string(13 - name.size(), ' ') + printable(value) + "\n";
}

void add_description(std::string& text, const ScopeUsage& usage) {
  const std::optional<Scope> scope = described_scope(usage);
  if (!scope) {
    add_line(text, "description", usage.description.empty() ? "(none)" : usage.description);
    return;
  }
  add_line(text, "namespace", scope->name_space);
  add_line(text, "model", scope->model);
  add_line(text, "weights", to_string(scope->weights));
  add_line(text, "layout", scope->layout);
}

Json usage_json(const ScopeUsage& usage) {
  Json json{{"scope", usage.scope.hex()},
            {"blocks", usage.blocks},
            {"bytes", usage.bytes},
            {"in_use_by", usage.holders},
            {"description", usage.description}};
  if (const std::optional<Scope> scope = described_scope(usage)) {
    json["namespace"] = scope->name_space;
    json["model"] = scope->model;
    json["layout"] = scope->layout;
    json["weights"] = to_string(scope->weights);
  }
  return json;
}

}  // namespace

std::string scopes_text(std::span<const ScopeUsage> scopes) {
  if (scopes.empty()) return "no scopes\n";
  char line[128];
  std::snprintf(line, sizeof line, "%-32s %10s %15s %6s\n", "scope", "blocks", "bytes", "users");
  std::string text = line;
  for (const ScopeUsage& usage : scopes) {
    std::snprintf(line, sizeof line, "%-32s %10llu %15llu %6zu\n", usage.scope.hex().c_str(),
                  static_cast<unsigned long long>(usage.blocks),
                  static_cast<unsigned long long>(usage.bytes), usage.holders.size());
    text += line;
    add_description(text, usage);
    if (!usage.holders.empty()) add_line(text, "in use by", holders_text(usage));
  }
  return text;
}

void print_scopes(std::span<const ScopeUsage> scopes) {
  std::fputs(scopes_text(scopes).c_str(), stdout);
}

Json scopes_json(std::span<const ScopeUsage> scopes) {
  Json list = Json::array();
  for (const ScopeUsage& usage : scopes) list.push_back(usage_json(usage));
  return {{"scopes", std::move(list)}};
}

void add_selection_options(CLI::App& command, const std::shared_ptr<SelectionOptions>& options) {
  command.add_option("--scope", options->scope, "the scope with this id (32 hex digits)");
  command.add_option("--namespace", options->name_space,
                     "all scopes of this namespace (those of the empty one go by --scope)");
  command.add_flag("--yes", options->yes, "do not ask");
}

Result<ScopeSelection> to_selection(const SelectionOptions& options,
                                    const std::string& list_command) {
  if (options.scope.empty() == options.name_space.empty()) {
    return fail(Code::kBadRequest, "say either --scope ID or --namespace NAME");
  }
  if (!options.name_space.empty()) return ScopeSelection{.name_space = options.name_space};
  ScopeId scope;
  if (options.scope.size() != 2 * scope.bytes.size() || !from_hex(options.scope, scope.bytes)) {
    return fail(Code::kBadRequest, "--scope '" + options.scope +
                                       "' is not a scope id of 32 hex digits; `" + list_command +
                                       "` lists them");
  }
  return ScopeSelection{.scope = scope};
}

Error not_there(const ScopeSelection& selection, const std::string& list_command) {
  return {Code::kMiss,
          to_string(selection) + " is not in the store; `" + list_command + "` lists what is"};
}

Status confirm_purge(std::span<const ScopeUsage> scopes, bool yes) {
  if (!yes && isatty(STDIN_FILENO) != 1) {
    return fail(Code::kBadRequest, "there is no terminal to ask on; --yes purges without asking");
  }
  print_scopes(scopes);
  if (yes) return {};
  std::printf("purge %s? [y/N] ", scopes.size() == 1 ? "it" : "them all");
  std::fflush(stdout);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return {};
  return fail(Code::kMiss, "nothing was purged");
}

std::string lending_nothing(const std::string& url) {
  if (!url.starts_with(kMooncake)) return url;
  // Behind what an engine's URL says of it, since the last one counts.
  return url + (url.contains('?') ? "&" : "?") + "global_segment_size=0";
}

Result<std::unique_ptr<KvStore>> open_shared_store(const std::string& url, Duration timeout,
                                                   Clock& clock, Executor& executor) {
  if (url == "memory" || url == "none") {
    return fail(Code::kBadRequest, "--store " + url +
                                       ": no other process has a part in it, so there is nothing "
                                       "to look into; use ipc://PATH or mooncake://HOST:PORT");
  }
  if (!url.starts_with(kIpc) && !url.starts_with(kMooncake)) {
    return fail(Code::kBadRequest,
                "--store '" + url + "' is unknown; use ipc://PATH or mooncake://HOST:PORT");
  }
  return make_store(lending_nothing(url), {.timeout = timeout, .leave_alone = false}, clock,
                    executor);
}

int report_failure(const std::string& command, const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "newmoon %s: %s\n", command.c_str(), error.message.c_str());
  return error.code == Code::kBusy || error.code == Code::kMiss ? 1 : 2;
}

}  // namespace newmoon
