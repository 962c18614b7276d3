// One engine of a rollout: a real model behind an EngineStack, driven by JSON lines on
// stdin. A request is {"op": ...}; every reply is one line, {"error": {code, message}}
// if it failed. The first line, {"ready": true}, comes unasked.
//
//   generate {requests, flush}              -> {outputs}   runs them to their end
//   submit   {requests, until_output_tokens, mark} -> {}    returns when so many are there;
//                                                           `mark`: FaultyStore::mark() first
//   collect  {}                             -> {outputs}   of what was submitted
//   pause    {mode, clear_cache}            -> {ms, complete}
//   update   {weights}                      -> {ms}        start, update(s), finish
//   reset    {}                             -> {ms, steps_ms, scope, success, degraded}
//   resume   {}                             -> {ms}
//   stats    {}                             -> counters of the ranks
//
// A request is {id, prompt | prompt_token_ids, max_tokens}; an output {id,
// prompt_token_ids, token_ids, weight_versions, finish_reason, *_tokens}.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/model_files.h"

namespace newmoon {

struct EngineProcessOptions {
  ModelFiles files;
  std::string name = "engine";
  std::string store = "none";  // a URL of store/make_store.h, or none
  std::string weights = "base";
  std::string mode = "exact";
  std::string faults;
  std::size_t ranks = 2;
  std::size_t kv_blocks = 960;
  int threads = 1;
};

// Serves until stdin ends. 0, or 2 if it could not start.
int run_engine_process(const EngineProcessOptions& options);

}  // namespace newmoon
