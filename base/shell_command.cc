#include "base/shell_command.h"

#include <algorithm>
#include <cctype>

namespace newmoon {
namespace {

bool is_plain(char c) {
  constexpr std::string_view kPlain = "-_./:=,@%+";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.contains(c);
}

std::string quoted(std::string_view word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  std::string text = "'";
  for (const char c : word) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

}  // namespace

std::string shell_command(std::initializer_list<std::string_view> words) {
  std::string line;
  for (const std::string_view word : words) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

}  // namespace newmoon
