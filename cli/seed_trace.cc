#include "cli/seed_trace.h"

#include <utility>

#include "base/log.h"

namespace newmoon {
namespace {

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "";
}

}  // namespace

SeedTrace::SeedTrace() {
  set_log_sink([this](LogLevel level, std::string_view component, std::string_view message) {
    add(component, std::string(message), level_name(level));
  });
  set_log_threshold(LogLevel::kDebug);
}

SeedTrace::~SeedTrace() {
  set_log_threshold(LogLevel::kWarning);
  set_log_sink({});
}

void SeedTrace::add(std::string_view component, std::string text, std::string_view level) {
  MutexLock lock(mutex_);
  lines_.push_back({std::string(level), std::string(component), std::move(text)});
}

std::vector<SeedTrace::Line> SeedTrace::take() {
  MutexLock lock(mutex_);
  return std::exchange(lines_, {});
}

std::string frames_hex(const Frames& frames) {
  std::string text;
  for (const Bytes& frame : frames) text += (text.empty() ? "" : " | ") + to_hex(frame);
  return text;
}

// --- TracedTransport ---

Status TracedTransport::send(std::size_t peer, const Frames& frames) {
  if (broken_) return fail(Code::kUnavailable, "the channel is broken");
  // Before it goes out, so that it stands before what it brings about.
  const std::string tag = frames.empty() ? "" : std::string(as_text(frames[0]));
  trace_.add("wire", "-> rank " + std::to_string(peer) + "  " + frames_hex(frames) + "  " + tag);
  return inner_->send(peer, frames);
}

std::optional<std::pair<std::size_t, Frames>> TracedTransport::receive() {
  auto message = inner_->receive();
  if (message) {
    trace_.add("wire",
               "<- rank " + std::to_string(message->first) + "  " + frames_hex(message->second));
  }
  return message;
}

// --- TracedStore ---

Status TracedStore::purge_scope(const ScopeId& scope, bool for_good) {
  trace_.add("store", "purge_scope(" + scope.hex() + (for_good ? ", for good)" : ")"));
  return inner_.purge_scope(scope, for_good);
}

Result<std::uint64_t> TracedStore::remove_all() {
  if (remove_all_mode == RemoveAll::kFails) {
    trace_.add("store", "remove_all: -900");
    return fail(Code::kUnavailable, "remove_all: the store's master does not answer (-900)");
  }
  if (remove_all_mode == RemoveAll::kLeavesAll) {
    trace_.add("store", "remove_all: 0 removed");
    return 0;
  }
  const Result<std::uint64_t> removed = inner_.remove_all();
  if (removed) trace_.add("store", "remove_all: " + std::to_string(*removed) + " removed");
  return removed;
}

}  // namespace newmoon
