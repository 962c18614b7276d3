// Log lines. The only process-wide state in the product: a threshold and a sink.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace newmoon {

enum class LogLevel : int { kDebug, kInfo, kWarning, kError };

// Writes "LEVEL component: message" if `level` reaches the threshold. A message
// over 300 bytes is cut short, so that a peer's bytes never flood the log.
// Any thread may call.
void log(LogLevel level, std::string_view component, std::string_view message);

// A literal that stands in front of each line on stderr, where others write there too; "" at
// start.
void set_log_prefix(std::string_view prefix);

void set_log_threshold(LogLevel level);  // kWarning at start
bool parse_log_level(std::string_view name, LogLevel* level);

// Replaces stderr as the sink; an empty function restores it. For tests and the
// seed walk, which show the lines.
using LogSink = std::function<void(LogLevel, std::string_view component, std::string_view message)>;
void set_log_sink(LogSink sink);

}  // namespace newmoon
