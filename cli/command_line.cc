#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <utility>

namespace newmoon {
namespace {

using Names = std::set<std::string>;

std::string name_part(const std::string& word) { return word.substr(0, word.find('=')); }

void add_option_names(const CLI::App& app, Names& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    add_option_names(*command, names);
  }
}

bool takes_a_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

void check_values(CLI::App& app, const std::shared_ptr<const Names>& names) {
  const auto check = [names](const std::string& value) -> std::string {
    if (value.empty()) return "the value is empty";
    return names->contains(name_part(value)) ? "a value is missing before " + value : "";
  };
  for (CLI::Option* option : app.get_options()) {
    // A transform stands before the checks that the command has set, which take it for a value.
    if (takes_a_value(*option)) {
      option->transform(CLI::Validator(check, ""));
    } else {
      option->disable_flag_override();  // --wait=3 would do
    }
  }
  for (CLI::App* command : app.get_subcommands({})) {
    check_values(*command, names);
  }
}

// --- mistakes ---

// The last command that was named.
const CLI::App& command_at(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

// "ping, fence, stats"; empty: it has none.
std::string commands_of(const CLI::App& command) {
  std::string text;
  for (const CLI::App* each :
       command.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    text += (text.empty() ? "" : ", ") + each->get_name();
  }
  return text;
}

// That an option is of: the command, or one above it. nullptr: no option of theirs.
const CLI::App* owner_of(const std::string& option, const CLI::App& command) {
  const CLI::App* app = &command;
  while (app != nullptr && app->get_option_no_throw(option) == nullptr) app = app->get_parent();
  return app;
}

const CLI::Option* find_option(const std::string& name, const CLI::App& command) {
  const CLI::App* owner = owner_of(name, command);
  return owner == nullptr ? nullptr : owner->get_option_no_throw(name);
}

std::string about_unexpected(const std::string& word, const CLI::App& command) {
  const std::string name = name_part(word);
  if (name.starts_with("-")) {
    const bool known = command.get_option_no_throw(name) != nullptr;
    return known ? name + " is to stand behind the command" : "unknown option " + name;
  }
  const std::string commands = commands_of(command);
  if (commands.empty()) return "unexpected '" + word + "'";
  return "unknown command '" + word + "'; there are " + commands;
}

// CLI11 says "--store: At Most 1 required but received 2", "--store: 1 required TEXT missing" and
// "yes was given a disallowed flag override".
std::string about_count(const CLI::App& command, const std::string& text) {
  const std::string name = text.substr(0, text.find_first_of(": "));
  if (!name.starts_with("-")) return "--" + name + " takes no value";
  const CLI::Option* option = find_option(name, command);
  const bool twice = option != nullptr && option->count() > 1;
  return name + (twice ? " is there more than once" : ": a value is missing");
}

// Of a number or a flag: every text is one. CLI11 says "Could not convert: --ranks = two".
std::string about_conversion(const CLI::App& command, const std::string& text) {
  const std::string what = text.substr(text.find(": ") + 2);
  const std::string name = what.substr(0, what.find(" = "));
  const CLI::Option* option = find_option(name, command);
  if (option == nullptr || !takes_a_value(*option)) return name + " takes no value";
  return name + ": '" + option->results().front() + "' is no whole number, or too large";
}

// `ctl --endpoint ping`, `scopes --store -- URL`: what is no value went for one. Empty: nothing
// did.
std::string about_swallowed_word(const CLI::App& command) {
  std::vector<std::string> words = {"--"};
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(below->get_name());
  }
  for (const CLI::Option* option : command.get_options()) {
    const auto value = std::ranges::find_first_of(option->results(), words);
    const bool is_swallowed = value != option->results().end();
    if (is_swallowed) return option->get_name() + ": a value is missing before " + *value;
  }
  return "";
}

std::string mistake(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  std::string swallowed = about_swallowed_word(command);
  if (!swallowed.empty()) return swallowed;
  // CLI11 misses what is required first, and does not say what stood in its place.
  const std::vector<std::string> unexpected = app.remaining(true);
  if (!unexpected.empty()) return about_unexpected(unexpected.front(), command);
  const std::string kind = error.get_name();
  if (kind == "ArgumentMismatch") return about_count(command, error.what());
  if (kind == "ConversionError") return about_conversion(command, error.what());
  const std::string commands = commands_of(command);
  if (kind != "RequiredError" || commands.empty()) return error.what();
  return "a command is missing: " + commands;
}

}  // namespace

std::vector<std::string> command_line_of(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    const std::string value = equals == word.npos ? word : word.substr(equals + 1);
    const bool is_apart = equals != word.npos && (value.empty() || value == "true");
    words.push_back(is_apart ? word.substr(0, equals) : word);
    if (is_apart) words.push_back(value);
  }
  std::ranges::reverse(words);
  return words;
}

void refuse_what_is_no_value(CLI::App& app) {
  Names names = {"--"};
  add_option_names(app, names);
  check_values(app, std::make_shared<const Names>(std::move(names)));
}

int end_with_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help
  const CLI::App& command = command_at(app);
  const std::string what = mistake(app, command, error);
  const CLI::App* owner = owner_of(what.substr(0, what.find_first_of(": ")), command);
  const std::string help = full_name(owner == nullptr ? command : *owner);
  std::fprintf(stderr, "%s: %s; see %s --help\n", full_name(command).c_str(), what.c_str(),
               help.c_str());
  // CLI11 has an exit code for each kind of mistake; ours is 2 for all of them.
  return 2;
}

}  // namespace newmoon
