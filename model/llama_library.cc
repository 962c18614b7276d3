#include "model/llama_library.h"

#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace newmoon {
namespace {

// llama.cpp logs in pieces; a line ends with '\n'. Per thread, because the library
// logs on the thread that called it.
struct ThreadLog {
  std::string line;
  bool is_error = false;
  std::string first_error;
};
thread_local ThreadLog thread_log;

void end_line() {
  ThreadLog& state = thread_log;
  log(LogLevel::kDebug, "llama.cpp", state.line);
  if (state.is_error && state.first_error.empty()) {
    const std::size_t name_end = state.line.find(": ");  // "llama_model_load: reason"
    state.first_error =
        name_end == std::string::npos ? state.line : state.line.substr(name_end + 2);
  }
  state.line.clear();
}

void on_log(ggml_log_level level, const char* text, void*) {
  ThreadLog& state = thread_log;
  if (level != GGML_LOG_LEVEL_CONT) state.is_error = level == GGML_LOG_LEVEL_ERROR;
  for (const char c : std::string_view(text)) {
    if (c == '\n') {
      end_line();
    } else {
      state.line += c;
    }
  }
}

}  // namespace

void LlamaDeleter::operator()(llama_adapter_lora* adapter) const {
  llama_adapter_lora_free(adapter);
}
void LlamaDeleter::operator()(llama_context* context) const { llama_free(context); }
void LlamaDeleter::operator()(llama_model* model) const { llama_model_free(model); }

void init_llama() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(on_log, nullptr);
    llama_backend_init();
  });
}

std::string take_llama_error() { return std::exchange(thread_log.first_error, ""); }

std::string llama_build_text() {
  std::string text =
      std::string("llama.cpp ") + llama_version() + ", ggml " + ggml_version() + ", ";
  std::ranges::copy_if(std::string_view(llama_print_system_info()), std::back_inserter(text),
                       [](char c) { return c != ' '; });
  return text;
}

Result<LlamaModelPtr> load_llama_model(const std::string& path, bool vocabulary_only) {
  init_llama();
  if (!std::filesystem::is_regular_file(path)) {
    return fail(Code::kUnavailable, "model " + path + ": no such file; give the path of a GGUF");
  }
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.load_mode = LLAMA_LOAD_MODE_NONE;
  params.use_extra_bufts = false;
  params.vocab_only = vocabulary_only;
  take_llama_error();
  LlamaModelPtr model(llama_model_load_from_file(path.c_str(), params));
  if (model == nullptr) {
    return fail(Code::kBadRequest, "model " + path + ": llama.cpp cannot load it (" +
                                       take_llama_error() + "); is the download complete?");
  }
  return model;
}

}  // namespace newmoon
