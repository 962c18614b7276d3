// What `newmoon` makes of its command line beside CLI11, in every command alike: what is no
// value for an option, and how a mistake is told.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace newmoon {

// argv as CLI::App::parse() takes it: back to front, without the program. `--store=` gives an
// empty value there, where CLI11 would take the word behind it for one, and `--yes=true` a word of
// its own, where CLI11 would take that value of a flag and no other.
std::vector<std::string> command_line_of(int argc, const char* const* argv);

// Of all options of all commands there are by now: an empty value is refused, and so is an
// option's name, as in `--store --json`.
void refuse_what_is_no_value(CLI::App& app);

// Says in one line what is wrong and which --help tells what is right; or shows the help that
// was asked for. The exit code. REQUIRES: `error` comes from app.parse().
int end_with_usage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace newmoon
