// One client of a Mooncake store: the calls of the wheel's MooncakeDistributedStore
// (0.3.13) that Newmoon uses. The wheel is a Python extension; the implementation is a
// plugin that embeds the interpreter (store/mooncake/plugin/), and no Python type
// crosses this interface. A test implements it without Mooncake.
//
// Any thread may call, several at a time; calls block, a dead master's for 4.5 s.
// kInternal: the wheel raised an exception, whose text is the message. What Mooncake
// itself answers, an item or a call, is a code as it stands: 0 or more is success,
// store/mooncake/error_code.h names the others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/mooncake/config.h"

namespace newmoon {

// A value in memory that was registered with register_buffer().
struct MooncakeBuffer {
  void* data = nullptr;
  std::uint64_t bytes = 0;
};

// A value in pieces, one behind the other.
using MooncakeValue = std::vector<MooncakeBuffer>;

class MooncakeClient {
 public:
  // Gives back what the wheel holds. REQUIRES: no call in flight.
  virtual ~MooncakeClient() = default;

  // Joins the store; once. The rest needs it.
  virtual Result<std::int64_t> setup(const MooncakeConfig& config) = 0;
  // Takes memory that transfers may use, until close().
  virtual Result<std::int64_t> register_buffer(MooncakeBuffer buffer) = 0;

  // One code an item, `codes` being as long as `keys`. Keys are ASCII.
  // A put of a key that is there, or is being written by anyone: 0, nothing stored.
  virtual Status batch_put_from(std::span<const std::string_view> keys,
                                std::span<const MooncakeValue> values,
                                std::span<std::int64_t> codes) = 0;
  // Codes: bytes of the value. A value longer than its buffer: -600.
  virtual Status batch_get_into(std::span<const std::string_view> keys,
                                std::span<const MooncakeBuffer> values,
                                std::span<std::int64_t> codes) = 0;
  // Codes: 1 readable, 0 not. Grants each key found a lease.
  virtual Status batch_is_exist(std::span<const std::string_view> keys,
                                std::span<std::int64_t> codes) = 0;
  // Where values lie, under the addresses of the process that lent the memory, which may be
  // another: one list a key, empty for what is not there or not in memory. Grants each key
  // found a lease.
  virtual Status batch_get_replica_desc(std::span<const std::string_view> keys,
                                        std::span<std::vector<MooncakeBuffer>> replicas) = 0;
  virtual Result<std::int64_t> get_size(std::string_view key) = 0;
  // Replaces what is there.
  virtual Result<std::int64_t> upsert_from(std::string_view key, MooncakeBuffer value) = 0;

  // Codes: 0, or -704 for what is not there. Leased values too.
  virtual Status batch_remove(std::span<const std::string_view> keys,
                              std::span<std::int64_t> codes) = 0;
  // Both with force: leased values too; not those being written. How many.
  virtual Result<std::int64_t> remove_by_regex(const std::string& pattern) = 0;
  virtual Result<std::int64_t> remove_all() = 0;

  // 0 healthy, 1 closed, 2 the master does not answer. At once.
  virtual Result<std::int64_t> health_check() = 0;
  // Leaves the store; takes 1 to 2.3 s. No other call after it.
  virtual Result<std::int64_t> close() = 0;
};

// A line of the wheel's log. `severity`: glog's, 0 info to 3 fatal. May be called by any
// thread at any time, until the process ends.
using MooncakeLog = void (*)(int severity, std::string_view line);

// What the plugin exports under the name kMooncakePluginSymbol: one more client. The
// interpreter is started with the first one, unless this process has one already, and
// never ended. False: `error` says why.
using MooncakePluginFunction = bool (*)(const std::string& wheel_folder, MooncakeLog log,
                                        std::unique_ptr<MooncakeClient>& client, Error& error);
inline constexpr const char* kMooncakePluginSymbol = "newmoon_mooncake_client";

}  // namespace newmoon
