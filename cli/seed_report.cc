#include "cli/seed_report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace newmoon {

void SeedReport::section(const std::string& title) {
  std::printf("\n== %s ==\n\n", title.c_str());
  said_something_ = false;
}

void SeedReport::say(const std::string& text) {
  std::printf("  %s\n", text.c_str());
  said_something_ = true;
}

void SeedReport::check(const std::string& what, const std::string& expected,
                       const std::string& seen) {
  rows_.push_back({what, expected, seen});
}

void SeedReport::end_table() {
  const auto width = [this](std::string Row::* column, const std::string& title) {
    std::size_t widest = title.size();
    for (const Row& row : rows_) widest = std::max(widest, (row.*column).size());
    return static_cast<int>(widest);
  };
  const int what = width(&Row::what, "");
  const int expected = width(&Row::expected, "expected");
  const int seen = width(&Row::seen, "seen");
  const auto print = [&](const Row& row, const char* verdict) {
    std::printf("  %-*s  %-*s  %-*s  %s\n", what, row.what.c_str(), expected, row.expected.c_str(),
                seen, row.seen.c_str(), verdict);
  };
  if (std::exchange(said_something_, true)) std::printf("\n");
  print({"", "expected", "seen"}, "");
  for (const Row& row : std::exchange(rows_, {})) {
    const bool holds = row.expected == row.seen;
    ++checks_;
    failed_ += holds ? 0 : 1;
    print(row, holds ? "ok" : "FAIL");
  }
}

}  // namespace newmoon
