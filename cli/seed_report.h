// What `newmoon seed` prints: sections, tables of what was expected and what was
// seen, and the count of both. One thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace newmoon {

class SeedReport {
 public:
  void section(const std::string& title);
  void say(const std::string& text);

  // A row of the table that end_table() prints; it fails unless the texts are equal.
  void check(const std::string& what, const std::string& expected, const std::string& seen);
  void end_table();

  std::size_t checks() const { return checks_; }
  std::size_t failed() const { return failed_; }

 private:
  struct Row {
    std::string what;
    std::string expected;
    std::string seen;
  };

  std::vector<Row> rows_;
  bool said_something_ = false;  // since the section's title
  std::size_t checks_ = 0;
  std::size_t failed_ = 0;
};

}  // namespace newmoon
