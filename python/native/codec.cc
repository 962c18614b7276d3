#include "python/native/codec.h"

#include <algorithm>
#include <string>

namespace newmoon {
namespace {

constexpr std::uint8_t kStepTag = 0xa2;  // version 2 of each
constexpr std::uint8_t kReportTag = 0xb2;

class Writer {
 public:
  explicit Writer(std::uint8_t tag) { put(tag); }

  template <class Int>
  void put(Int value) {
    bytes_.resize(bytes_.size() + sizeof value);
    store_le(bytes_.data() + bytes_.size() - sizeof value, value);
  }
  void put_count(std::size_t count) { put(static_cast<std::uint32_t>(count)); }
  void put_raw(ByteView raw) { append(bytes_, raw); }
  void put_text(std::string_view text) {
    put_count(text.size());
    put_raw(as_bytes(text));
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// After the first thing that is wrong every get() gives zero, and ok() is false.
class Reader {
 public:
  Reader(ByteView bytes, std::uint8_t tag) : bytes_(bytes) { check(get<std::uint8_t>() == tag); }

  template <class Int>
  Int get() {
    const ByteView raw = get_raw(sizeof(Int));
    return raw.empty() ? Int{} : load_le<Int>(raw.data());
  }
  // Of items of at least `item_bytes` each, which must all be there.
  std::size_t get_count(std::size_t item_bytes) {
    const std::size_t count = get<std::uint32_t>();
    check(count <= left() / item_bytes);
    return ok_ ? count : 0;
  }
  ByteView get_raw(std::size_t size) {
    check(size <= left());
    if (!ok_) return {};
    const ByteView raw = bytes_.subspan(at_, size);
    at_ += size;
    return raw;
  }
  std::string get_text() {
    const std::size_t size = get_count(1);
    return std::string(as_text(get_raw(size)));
  }
  void check(bool holds) { ok_ = ok_ && holds; }
  bool ok() const { return ok_; }
  Status end(std::string_view what) {
    check(left() == 0);
    if (ok_) return {};
    return fail(Code::kBadRequest, std::string(what) + " of " + std::to_string(bytes_.size()) +
                                       " bytes is malformed at byte " + std::to_string(at_));
  }

 private:
  std::size_t left() const { return bytes_.size() - at_; }

  ByteView bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

constexpr std::size_t kBlockBytesMin = sizeof(BlockId) + 1;

void put_blocks(Writer& writer, const std::vector<BlockRef>& blocks) {
  writer.put_count(blocks.size());
  for (const BlockRef& block : blocks) {
    writer.put(block.block);
    writer.put(static_cast<std::uint8_t>(block.hash.bytes().size()));
    writer.put_raw(block.hash.bytes());
  }
}

std::vector<BlockRef> get_blocks(Reader& reader) {
  std::vector<BlockRef> blocks(reader.get_count(kBlockBytesMin));
  for (BlockRef& block : blocks) {
    block.block = reader.get<BlockId>();
    const std::size_t size = reader.get<std::uint8_t>();
    reader.check(size <= BlockHash::kMaxSize);
    if (reader.ok()) block.hash = BlockHash(reader.get_raw(size));
  }
  return blocks;
}

ScopeId get_scope(Reader& reader) {
  ScopeId scope;
  std::ranges::copy(reader.get_raw(scope.bytes.size()), scope.bytes.begin());
  return scope;
}

void put_scopes(Writer& writer, const std::vector<ScopeId>& scopes) {
  writer.put_count(scopes.size());
  for (const ScopeId& scope : scopes) writer.put_raw(scope.bytes);
}

std::vector<ScopeId> get_scopes(Reader& reader) {
  std::vector<ScopeId> scopes(reader.get_count(sizeof(ScopeId::bytes)));
  for (ScopeId& scope : scopes) scope = get_scope(reader);
  return scopes;
}

// Loads and saves have the same form; `id` is the load's or the job's.
template <class Job>
void put_job(Writer& writer, const Job& job, std::uint64_t id) {
  writer.put(id);
  writer.put_text(job.request_id);
  writer.put(job.epoch);
  writer.put_raw(job.scope.bytes);
  put_blocks(writer, job.blocks);
}

constexpr std::size_t kJobBytesMin = 8 + 4 + 8 + 16 + 4;

template <class Job>
void get_job(Reader& reader, Job& job, std::uint64_t& id) {
  id = reader.get<std::uint64_t>();
  job.request_id = reader.get_text();
  job.epoch = reader.get<Epoch>();
  job.scope = get_scope(reader);
  job.blocks = get_blocks(reader);
}

enum class OpenScopeKind : std::uint8_t { kUnchanged, kSealed, kOpen };

void put_open_scope(Writer& writer, const std::optional<StepMessage::OpenScope>& scope) {
  const bool is_open = scope && scope->id;
  const OpenScopeKind kind = is_open ? OpenScopeKind::kOpen
                             : scope ? OpenScopeKind::kSealed
                                     : OpenScopeKind::kUnchanged;
  writer.put(static_cast<std::uint8_t>(kind));
  if (!is_open) return;
  writer.put_raw(scope->id->bytes);
  writer.put_text(scope->description);
}

std::optional<StepMessage::OpenScope> get_open_scope(Reader& reader) {
  const auto kind = reader.get<std::uint8_t>();
  reader.check(kind <= static_cast<std::uint8_t>(OpenScopeKind::kOpen));
  if (!reader.ok() || kind == static_cast<std::uint8_t>(OpenScopeKind::kUnchanged)) return {};
  StepMessage::OpenScope scope;
  if (kind == static_cast<std::uint8_t>(OpenScopeKind::kOpen)) {
    scope.id = get_scope(reader);
    scope.description = reader.get_text();
  }
  return scope;
}

}  // namespace

Bytes encode_step(const StepMessage& step) {
  const ConnectorMetadata& metadata = step.metadata;
  Writer writer(kStepTag);
  writer.put(metadata.epoch);
  writer.put_count(metadata.weight_writes.size());
  for (const std::uint64_t writes : metadata.weight_writes) writer.put(writes);
  writer.put_count(metadata.loads.size());
  for (const LoadJob& job : metadata.loads) put_job(writer, job, job.load_id);
  writer.put_count(metadata.saves.size());
  for (const SaveJob& job : metadata.saves) put_job(writer, job, job.job_id);
  put_scopes(writer, step.left_scopes);
  put_scopes(writer, step.tainted_scopes);
  put_open_scope(writer, step.open_scope);
  return writer.take();
}

Result<StepMessage> decode_step(ByteView bytes) {
  StepMessage step;
  ConnectorMetadata& metadata = step.metadata;
  Reader reader(bytes, kStepTag);
  metadata.epoch = reader.get<Epoch>();
  metadata.weight_writes.resize(reader.get_count(8));
  for (std::uint64_t& writes : metadata.weight_writes) writes = reader.get<std::uint64_t>();
  metadata.loads.resize(reader.get_count(kJobBytesMin));
  for (LoadJob& job : metadata.loads) get_job(reader, job, job.load_id);
  metadata.saves.resize(reader.get_count(kJobBytesMin));
  for (SaveJob& job : metadata.saves) get_job(reader, job, job.job_id);
  step.left_scopes = get_scopes(reader);
  step.tainted_scopes = get_scopes(reader);
  step.open_scope = get_open_scope(reader);
  if (const Status end = reader.end("step message"); !end) return std::unexpected(end.error());
  return step;
}

Bytes encode_report(const WorkerReport& report) {
  Writer writer(kReportTag);
  writer.put(static_cast<std::uint32_t>(report.rank));
  writer.put(report.weight_writes);
  writer.put(report.unbound_epoch.value_or(0));  // no epoch is 0
  writer.put_count(report.loads.size());
  for (const LoadReport& load : report.loads) {
    writer.put(load.load_id);
    writer.put_count(load.failed_blocks.size());
    for (const BlockId block : load.failed_blocks) writer.put(block);
  }
  writer.put_count(report.saves.size());
  for (const SaveReport& save : report.saves) {
    writer.put(save.job_id);
    writer.put(static_cast<std::uint8_t>(save.outcome));
  }
  put_scopes(writer, report.emptied_scopes);
  return writer.take();
}

Result<WorkerReport> decode_report(ByteView bytes) {
  WorkerReport report;
  Reader reader(bytes, kReportTag);
  report.rank = reader.get<std::uint32_t>();
  report.weight_writes = reader.get<std::uint64_t>();
  if (const Epoch epoch = reader.get<Epoch>(); epoch != 0) report.unbound_epoch = epoch;
  report.loads.resize(reader.get_count(8 + 4));
  for (LoadReport& load : report.loads) {
    load.load_id = reader.get<std::uint64_t>();
    load.failed_blocks.resize(reader.get_count(sizeof(BlockId)));
    for (BlockId& block : load.failed_blocks) block = reader.get<BlockId>();
  }
  report.saves.resize(reader.get_count(8 + 1));
  for (SaveReport& save : report.saves) {
    save.job_id = reader.get<std::uint64_t>();
    const auto outcome = reader.get<std::uint8_t>();
    reader.check(outcome <= static_cast<std::uint8_t>(SaveOutcome::kFailed));
    save.outcome = static_cast<SaveOutcome>(outcome);
  }
  report.emptied_scopes = get_scopes(reader);
  if (const Status end = reader.end("report"); !end) return std::unexpected(end.error());
  return report;
}

}  // namespace newmoon
