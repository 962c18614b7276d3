#include "base/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

namespace newmoon {
namespace {

constexpr std::size_t kMaxMessage = 300;
constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};

std::atomic<LogLevel> threshold{LogLevel::kWarning};
std::mutex sink_mutex;
LogSink sink;
std::string_view prefix;

}  // namespace

void log(LogLevel level, std::string_view component, std::string_view message) {
  if (level < threshold.load(std::memory_order_relaxed)) return;
  const std::string_view shown = message.substr(0, kMaxMessage);
  std::lock_guard lock(sink_mutex);
  if (sink) {
    sink(level, component, shown);
    return;
  }
  const std::string_view name = kNames[static_cast<std::size_t>(level)];
  std::fprintf(stderr, "%.*s%.*s %.*s: %.*s%s\n", static_cast<int>(prefix.size()), prefix.data(),
               static_cast<int>(name.size()), name.data(), static_cast<int>(component.size()),
               component.data(), static_cast<int>(shown.size()), shown.data(),
               shown.size() < message.size() ? " ..." : "");
}

void set_log_prefix(std::string_view new_prefix) {
  std::lock_guard lock(sink_mutex);
  prefix = new_prefix;
}

void set_log_threshold(LogLevel level) { threshold.store(level, std::memory_order_relaxed); }

bool parse_log_level(std::string_view name, LogLevel* level) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != name) continue;
    *level = static_cast<LogLevel>(i);
    return true;
  }
  return false;
}

void set_log_sink(LogSink new_sink) {
  std::lock_guard lock(sink_mutex);
  sink = std::move(new_sink);
}

}  // namespace newmoon
