// Result<T> and Error: how every layer says that something did not work.
//
// A code exists only because some caller acts differently on it; the table in
// base/result.cc maps each code to its wire name, HTTP status and what the
// connector does. No exception crosses a layer border.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace newmoon {

enum class Code : std::uint8_t {
  kMiss,         // the thing is not there: compute it
  kBadRequest,   // the input is wrong: tell whoever sent it, do not retry
  kUnavailable,  // peer, store or file cannot be reached now: retry later
  kDeadline,     // time ran out, the outcome is unknown
  kBusy,         // a queue or budget is full: drop this work and go on
  kCorrupt,      // bytes failed their check: a miss, counted and logged
  kFenced,       // the epoch or scope is not the current one: never retry
  kInternal,     // our own fault
};

struct Error {
  Code code = Code::kInternal;
  std::string message;  // one line, names the thing and what to do
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

inline std::unexpected<Error> fail(Code code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}

// What a connector does with a request whose load, save or lookup ended so.
enum class ConnectorAction : std::uint8_t { kRecompute, kDrop, kRefence, kFailCaller };

// One row of the table: the same failure as seen by each audience.
struct CodeTraits {
  std::string_view wire_name;  // `code` in an admin error map
  int http_status;
  ConnectorAction action;
};

const CodeTraits& traits(Code code);

// The code with that wire name; kInternal for a name this version does not know.
Code code_from_wire(std::string_view wire_name);

// "busy: send queue of rank 1 is full"
std::string to_string(const Error& error);

}  // namespace newmoon
