// What the llama_*.cc files share: llama.cpp's one-time setup, its log, its deleters,
// and the text that names its numerics. Only model/llama_*.cc include llama.h; other
// files see the incomplete types below.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

struct llama_adapter_lora;
struct llama_context;
struct llama_model;

namespace newmoon {

struct LlamaDeleter {
  void operator()(llama_adapter_lora* adapter) const;
  void operator()(llama_context* context) const;
  void operator()(llama_model* model) const;
};
using LlamaAdapterPtr = std::unique_ptr<llama_adapter_lora, LlamaDeleter>;
using LlamaContextPtr = std::unique_ptr<llama_context, LlamaDeleter>;
using LlamaModelPtr = std::unique_ptr<llama_model, LlamaDeleter>;

// Initialises the library once a process and sends its log lines to ours, at debug
// level. Any thread may call; every user of the library calls it first.
void init_llama();

// The first error that llama.cpp logged on this thread since the last call, without its
// function's name; "" if none. Its reasons are to be had nowhere else, and what it logs
// after the first is that what called it failed, too.
std::string take_llama_error();

// Version of the library and the CPU features it computes with.
std::string llama_build_text();

// Loads weights into memory of our own (no mmap, no repacking), so that they can be
// written in place and read back as they stand in the file. `vocabulary_only`: no
// weights at all. kUnavailable: no such file. kBadRequest: not a model it can run.
Result<LlamaModelPtr> load_llama_model(const std::string& path, bool vocabulary_only);

}  // namespace newmoon
