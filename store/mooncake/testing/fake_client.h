// A Mooncake store in memory behind MooncakeClient, that does what a test asks of it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/thread_annotations.h"
#include "store/mooncake/client.h"

namespace newmoon::testing {

// What the client and the test share: the client belongs to the store under test, which may
// leave it behind with a call under way, until the end of the process.
struct FakeMooncake {
  ~FakeMooncake() { unmap(); }
  void unmap() {
    if (!lent.empty()) munmap(lent.data(), lent.size());
  }
  void lend(std::size_t bytes) {
    unmap();
    void* const mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    lent = {static_cast<std::uint8_t*>(mapped), bytes};
  }

  std::vector<std::vector<std::string>> looked_at NM_GUARDED_BY(mutex);  // each call's keys
  bool lends = false;  // setup maps what the configuration says
  MutableByteView lent;
  Mutex mutex;
  CondVar changed;
  std::map<std::string, std::string, std::less<>> values NM_GUARDED_BY(mutex);
  std::set<std::string, std::less<>> being_written NM_GUARDED_BY(mutex);
  std::map<std::string, MooncakeValue, std::less<>> pieces NM_GUARDED_BY(mutex);  // as put
  // Where keys lie, as the master says it.
  std::map<std::string, MooncakeValue, std::less<>> replicas NM_GUARDED_BY(mutex);
  // The code that every item of a batch, or a call, answers; 0: what is true.
  std::map<std::string, std::int64_t> codes NM_GUARDED_BY(mutex);
  std::map<std::string, std::int64_t, std::less<>> key_codes NM_GUARDED_BY(mutex);  // of one key
  std::string raises NM_GUARDED_BY(mutex);  // an exception's text; "": none
  bool held NM_GUARDED_BY(mutex) = false;   // calls wait before they do anything
  int waiting NM_GUARDED_BY(mutex) = 0;
  std::size_t read_early NM_GUARDED_BY(mutex) = 0;  // of each value, by a put before it waits
  std::string held_text NM_GUARDED_BY(mutex);       // an upsert of it waits; "": none does
  std::string location_error NM_GUARDED_BY(mutex);  // of batch_get_replica_desc; "": none
  int located NM_GUARDED_BY(mutex) = 0;             // calls of batch_get_replica_desc
  int passes NM_GUARDED_BY(mutex) = 0;              // of remove_by_regex
  bool closed NM_GUARDED_BY(mutex) = false;

  void set_code(const std::string& call, std::int64_t code) {
    MutexLock lock(mutex);
    codes[call] = code;
  }
  void hold() {
    MutexLock lock(mutex);
    held = true;
  }
  void let_go() {
    MutexLock lock(mutex);
    held = false;
    changed.notify_all();
  }
  void await_waiting(int count) {
    MutexLock lock(mutex);
    while (waiting < count) changed.wait(mutex);
  }
  std::size_t count() {
    MutexLock lock(mutex);
    return values.size();
  }
};

class FakeMooncakeClient final : public MooncakeClient {
 public:
  explicit FakeMooncakeClient(std::shared_ptr<FakeMooncake> fake)
      : owner_(std::move(fake)), fake_(*owner_) {}

  Result<std::int64_t> setup(const MooncakeConfig& config) override {
    if (fake_.lends) fake_.lend(config.global_segment_bytes);
    return one("setup");
  }
  Result<std::int64_t> register_buffer(MooncakeBuffer) override { return one("register_buffer"); }

  Status batch_put_from(std::span<const std::string_view> keys,
                        std::span<const MooncakeValue> values,
                        std::span<std::int64_t> codes) override {
    std::vector<std::string> read = starts_of(values);
    return each("put", keys, codes, [&](std::size_t i) NM_REQUIRES(fake_.mutex) {
      if (fake_.being_written.contains(keys[i])) return std::int64_t{0};
      fake_.pieces.emplace(keys[i], values[i]);
      std::size_t skipped = read[i].size();
      for (const MooncakeBuffer& piece : values[i]) {
        const std::string_view bytes(static_cast<const char*>(piece.data), piece.bytes);
        read[i].append(bytes.substr(std::exchange(skipped, 0)));
      }
      fake_.values.try_emplace(std::string(keys[i]), std::move(read[i]));
      return std::int64_t{0};
    });
  }
  Status batch_get_into(std::span<const std::string_view> keys,
                        std::span<const MooncakeBuffer> values,
                        std::span<std::int64_t> codes) override {
    return each("get", keys, codes, [&](std::size_t i) NM_REQUIRES(fake_.mutex) {
      const auto found = fake_.values.find(keys[i]);
      if (found == fake_.values.end()) return std::int64_t{-704};
      if (found->second.size() > values[i].bytes) return std::int64_t{-600};
      std::memcpy(values[i].data, found->second.data(), found->second.size());
      return static_cast<std::int64_t>(found->second.size());
    });
  }
  Status batch_is_exist(std::span<const std::string_view> keys,
                        std::span<std::int64_t> codes) override {
    {
      MutexLock lock(fake_.mutex);
      fake_.looked_at.emplace_back(keys.begin(), keys.end());
    }
    return each("exist", keys, codes, [&](std::size_t i) NM_REQUIRES(fake_.mutex) {
      return std::int64_t{fake_.values.contains(keys[i])};
    });
  }
  Status batch_get_replica_desc(std::span<const std::string_view> keys,
                                std::span<std::vector<MooncakeBuffer>> replicas) override {
    MutexLock lock(fake_.mutex);
    wait_while_held();
    ++fake_.located;
    if (!fake_.location_error.empty()) return fail(Code::kInternal, fake_.location_error);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto found = fake_.replicas.find(keys[i]);
      if (found != fake_.replicas.end()) replicas[i] = found->second;
    }
    return {};
  }
  Result<std::int64_t> get_size(std::string_view key) override {
    MutexLock lock(fake_.mutex);
    const auto found = fake_.values.find(key);
    return found == fake_.values.end() ? -704 : static_cast<std::int64_t>(found->second.size());
  }
  Result<std::int64_t> upsert_from(std::string_view key, MooncakeBuffer value) override {
    const std::string text(static_cast<const char*>(value.data), value.bytes);
    MutexLock lock(fake_.mutex);
    ++fake_.waiting;
    fake_.changed.notify_all();
    while (fake_.held_text == text) fake_.changed.wait(fake_.mutex);
    --fake_.waiting;
    fake_.values[std::string(key)] = text;
    fake_.changed.notify_all();
    return 0;
  }
  Status batch_remove(std::span<const std::string_view> keys,
                      std::span<std::int64_t> codes) override {
    return each("remove", keys, codes, [&](std::size_t i) NM_REQUIRES(fake_.mutex) {
      if (fake_.being_written.contains(keys[i])) return std::int64_t{-703};
      return std::int64_t{fake_.values.erase(std::string(keys[i])) > 0 ? 0 : -704};
    });
  }
  Result<std::int64_t> remove_by_regex(const std::string& pattern) override {
    const Result<std::int64_t> code = one("regex");
    MutexLock lock(fake_.mutex);
    ++fake_.passes;
    fake_.changed.notify_all();
    if (!code || *code < 0) return code;
    const std::regex regex(pattern);
    return static_cast<std::int64_t>(std::erase_if(
        fake_.values, [&](const auto& value) { return std::regex_search(value.first, regex); }));
  }
  Result<std::int64_t> remove_all() override {
    MutexLock lock(fake_.mutex);
    const auto count = static_cast<std::int64_t>(fake_.values.size());
    fake_.values.clear();
    return count;
  }
  Result<std::int64_t> health_check() override { return one("health"); }
  Result<std::int64_t> close() override {
    const Result<std::int64_t> code = one("close");
    MutexLock lock(fake_.mutex);
    fake_.closed = true;
    return code;
  }

 private:
  void wait_while_held() NM_REQUIRES(fake_.mutex) {
    ++fake_.waiting;
    fake_.changed.notify_all();
    while (fake_.held) fake_.changed.wait(fake_.mutex);
    --fake_.waiting;
  }
  std::vector<std::string> starts_of(std::span<const MooncakeValue> values) {
    MutexLock lock(fake_.mutex);
    std::vector<std::string> starts;
    for (const MooncakeValue& value : values) {
      starts.emplace_back(static_cast<const char*>(value.front().data),
                          std::min(value.front().bytes, fake_.read_early));
    }
    return starts;
  }
  std::int64_t code_of(const std::string& call) NM_REQUIRES(fake_.mutex) {
    const auto found = fake_.codes.find(call);
    return found == fake_.codes.end() ? 0 : found->second;
  }
  Result<std::int64_t> one(const std::string& call) {
    MutexLock lock(fake_.mutex);
    wait_while_held();
    if (!fake_.raises.empty()) return fail(Code::kInternal, fake_.raises);
    return code_of(call);
  }
  template <class Function>
  Status each(const std::string& call, std::span<const std::string_view> keys,
              std::span<std::int64_t> codes, const Function& code) {
    MutexLock lock(fake_.mutex);
    wait_while_held();
    if (!fake_.raises.empty()) return fail(Code::kInternal, fake_.raises);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto of_key = fake_.key_codes.find(keys[i]);
      codes[i] = of_key != fake_.key_codes.end() ? of_key->second : code_of(call);
      if (codes[i] == 0) codes[i] = code(i);
    }
    return {};
  }

  const std::shared_ptr<FakeMooncake> owner_;
  FakeMooncake& fake_;
};

// Time that passes only while a call hangs in the wheel, and while somebody sleeps, which is
// over at once: what is not to be late never is, however busy the machine, and what was waited
// for in vain has begun.
class WheelClock final : public Clock {
 public:
  explicit WheelClock(FakeMooncake& fake) : fake_(fake) {}

  Time now() const override {
    MutexLock lock(fake_.mutex);
    const Time seen = system_.now();
    const bool hangs = fake_.held && fake_.waiting > 0;
    if (hangs && hung_) passed_ += seen - seen_;
    hung_ = hangs;
    seen_ = seen;
    return passed_;
  }
  void sleep_until(Time deadline) override {
    MutexLock lock(fake_.mutex);
    passed_ = std::max(passed_, deadline);
  }

 private:
  FakeMooncake& fake_;
  SystemClock system_;
  mutable Time passed_ NM_GUARDED_BY(fake_.mutex){0};
  mutable Time seen_ NM_GUARDED_BY(fake_.mutex){0};
  mutable bool hung_ NM_GUARDED_BY(fake_.mutex) = false;
};

}  // namespace newmoon::testing
