// LlamaRunner: llama.cpp as the forward pass, on the CPU.
//
// A slot is a stream of one llama context; the blocks of the arena are copies of it,
// made as they fill, and the source of a stream when a slot restarts. Exact mode
// gives, bit for bit, the logits of a cold engine whatever ran before or runs beside
// (llama_exact_test.cc); fast mode uses all threads and promises nothing of the kind.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "model/batch_plan.h"
#include "model/kv_arena.h"
#include "model/llama_library.h"
#include "model/llama_session.h"
#include "model/llama_weights.h"
#include "model/model_runner.h"

namespace newmoon {

enum class LlamaMode { kExact, kFast };

struct LlamaOptions {
  std::string model_path;  // GGUF
  LlamaMode mode = LlamaMode::kExact;
  int threads = 0;             // 0: 1 in exact mode (it allows no other), else all
  int context_tokens_max = 0;  // of one sequence; 0: as many as the model was trained for
  int sequences_max = 8;
  int block_size = 16;      // tokens
  int step_tokens_max = 0;  // 0: 128 in exact mode, 512 in fast mode
};

class LlamaRunner final : public ModelRunner {
 public:
  // Loads the model and proves that KV blocks can be exchanged with it. kUnavailable:
  // no such file. kBadRequest: the file or a figure is wrong.
  static Result<std::unique_ptr<LlamaRunner>> load(LlamaOptions options);
  ~LlamaRunner() override;

  // Bytes of a block by layer; what the arena is to be created with.
  const KvLayout& kv_layout() const { return kv_layout_; }
  // The blocks that StepInput names from now on. Borrowed; null detaches. kBadRequest:
  // of another layout.
  Status attach(KvArena* arena);

  const ModelInfo& info() const override { return info_; }
  Result<StepOutput> execute(const StepInput& input) override;
  Status update_weights(const WeightUpdate& update) override;
  Result<DigestIdentity> weights_digest() override;
  Status sleep(int level) override;
  Status wake_up() override;

  // The bytes of a weight tensor as in a GGUF file: what SetTensors takes.
  // kBadRequest: no such tensor. kUnavailable: asleep at level 2.
  Result<Bytes> get_tensor(const std::string& name) const;

  // Called with the logits of every token that is sampled, before it is; for those who
  // compare numerics.
  using LogitsObserver = std::function<void(int slot, std::span<const float> logits)>;
  void set_logits_observer(LogitsObserver observer) { observer_ = std::move(observer); }

 private:
  struct Adapter {
    SetLora source;
    LlamaAdapterPtr tensors;
    Sha256Digest digest{};
  };

  explicit LlamaRunner(LlamaOptions options) : options_(std::move(options)) {}

  Status open_model(const std::string& path);
  Status open_session();
  ModelInfo describe(const GgufFile& file) const;
  int rows_max() const;
  std::size_t rows_min() const;

  Status check_awake() const;
  Status check(const StepInput& input) const;
  Status check(const SequenceStep& step) const;
  Status restart(const SequenceStep& step);
  Status run(const ModelCall& call, const StepInput& input, StepOutput& output);
  std::vector<LlamaRow> rows_of(const ModelCall& call, const StepInput& input) const;
  Status decode(std::vector<LlamaRow> rows);
  void export_full_blocks(const SequenceStep& step, std::size_t first_token, std::size_t count);

  Status apply(const LoadGguf& update);
  Status apply(const SetTensors& update);
  Status apply(const SetLora& update);
  Result<Adapter> load_adapter(const SetLora& source);
  void put_adapter_on();

  LlamaOptions options_;
  ModelInfo info_;
  KvLayout kv_layout_;
  KvArena* arena_ = nullptr;
  LogitsObserver observer_;

  std::string model_path_;                        // of the GGUF in force
  std::map<std::string, Sha256Digest> metadata_;  // of the model, GgufFile::metadata()
  LlamaModelPtr model_;                           // null: asleep at level 2
  std::optional<Adapter> adapter_;                // tensors null while asleep at level 2
  std::unique_ptr<LlamaSession> session_;         // null: asleep
  std::optional<LlamaWeights> weights_;
  bool weights_broken_ = false;  // by a LoadGguf that ended half-way
};

}  // namespace newmoon
