// What `newmoon scopes`, `newmoon purge` and `newmoon ctl` have in common: how scopes are
// shown, named on the command line and asked about, and how a shared store is opened.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/executor.h"
#include "base/result.h"
#include "store/kv_store.h"
#include "store/scope_purge.h"

namespace CLI {
class App;
}

namespace newmoon {

// A table as `newmoon scopes` shows it; "no scopes" if there are none.
std::string scopes_text(std::span<const ScopeUsage> scopes);
void print_scopes(std::span<const ScopeUsage> scopes);  // on the standard output
// {"scopes": [{"scope", "blocks", "bytes", "in_use_by": [...], "description", and if that is
// known "namespace", "model", "layout", "weights"}, ...]}
nlohmann::json scopes_json(std::span<const ScopeUsage> scopes);

struct SelectionOptions {
  std::string scope{};  // 32 hex digits
  std::string name_space{};
  bool yes = false;
};
// --scope, --namespace (one of the two) and --yes.
void add_selection_options(CLI::App& command, const std::shared_ptr<SelectionOptions>& options);
// kBadRequest: neither or both, or no scope id; `list_command` lists those there are.
Result<ScopeSelection> to_selection(const SelectionOptions& options,
                                    const std::string& list_command);
// kMiss: nothing of the selection is there; `list_command` lists what is.
Error not_there(const ScopeSelection& selection, const std::string& list_command);

// Shows what would go and asks. kBadRequest: there is no terminal to ask on. kMiss: no.
Status confirm_purge(std::span<const ScopeUsage> scopes, bool yes);

// A Mooncake store's URL, for a process that lends nothing to it; another store's as it stands.
std::string lending_nothing(const std::string& url);

// A store that other processes share too. kBadRequest: "memory" and "none", which no other
// process has a part in, or another URL. Of a Mooncake store this process becomes a client that
// lends no memory, whatever the URL says, which may be an engine's.
Result<std::unique_ptr<KvStore>> open_shared_store(const std::string& url, Duration timeout,
                                                   Clock& clock, Executor& executor);

// Prints "newmoon <command>: <message>" and returns the exit code: 1 for what was asked of
// a store that is well (kBusy: in use, kMiss: not there or not wanted), else 2.
int report_failure(const std::string& command, const Error& error);

}  // namespace newmoon
