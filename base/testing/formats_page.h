// Reads the examples of docs/formats.md, so that tests keep the page true.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/transport.h"

#ifndef NEWMOON_SOURCE_DIR  // the build defines it for the tests that read the page
#define NEWMOON_SOURCE_DIR "."
#endif

namespace newmoon::testing {

inline const std::vector<std::string>& formats_page() {
  static const auto* const kLines = [] {
    std::ifstream file(NEWMOON_SOURCE_DIR "/docs/formats.md");
    auto* const lines = new std::vector<std::string>;
    for (std::string line; std::getline(file, line);) lines->push_back(line);
    return lines;
  }();
  return *kLines;
}

// The lines of the fenced example that begins with "```<name>".
inline std::vector<std::string> example_lines(const std::string& name) {
  auto line = std::ranges::find(formats_page(), "```" + name);
  std::vector<std::string> lines;
  if (line == formats_page().end()) {
    ADD_FAILURE() << "docs/formats.md has no example " << name;
    return lines;
  }
  while (++line != formats_page().end() && *line != "```") lines.push_back(*line);
  return lines;
}

// Hex digits of a line of an example: without spaces, up to the comment.
inline std::string hex_digits(const std::string& line) {
  std::string hex;
  std::ranges::copy_if(line.substr(0, line.find('#')), std::back_inserter(hex),
                       [](char c) { return c != ' '; });
  return hex;
}

// Of the example "```hex <name>".
inline std::string hex_example(const std::string& name) {
  std::string hex;
  for (const std::string& line : example_lines("hex " + name)) hex += hex_digits(line);
  EXPECT_FALSE(hex.empty()) << name;
  return hex;
}

inline Bytes bytes_example(const std::string& name) {
  const std::optional<Bytes> bytes = from_hex(hex_example(name));
  EXPECT_TRUE(bytes) << name << " is not hex";
  return bytes.value_or(Bytes());
}

// Of the example "```frames <name>": each line at the margin begins a frame.
inline Frames frames_example(const std::string& name) {
  Frames frames;
  for (const std::string& line : example_lines("frames " + name)) {
    const std::optional<Bytes> bytes = from_hex(hex_digits(line));
    EXPECT_TRUE(bytes) << name << " is not hex: " << line;
    if (!line.starts_with(' ')) frames.emplace_back();
    append(frames.back(), bytes.value_or(Bytes()));
  }
  return frames;
}

}  // namespace newmoon::testing
