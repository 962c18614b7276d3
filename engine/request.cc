#include "engine/request.h"

#include <utility>

namespace newmoon {
namespace {

// The prompt lives in Request::tokens, followed by the output.
RequestInput without_prompt(RequestInput input) {
  input.prompt = {};
  return input;
}

}  // namespace

std::string_view to_string(RequestStatus status) {
  switch (status) {
    case RequestStatus::kWaiting:
      return "waiting";
    case RequestStatus::kWaitingForRemoteKvs:
      return "waiting_for_remote_kvs";
    case RequestStatus::kRunning:
      return "running";
    case RequestStatus::kPreempted:
      return "preempted";
    case RequestStatus::kFinishedStopped:
      return "stop";
    case RequestStatus::kFinishedLengthCapped:
      return "length";
    case RequestStatus::kFinishedAborted:
      return "abort";
    case RequestStatus::kFinishedError:
      return "error";
  }
  return "unknown";
}

EngineRequest::EngineRequest(RequestInput request_input)
    : input(without_prompt(request_input)),
      num_prompt_tokens(static_cast<std::uint32_t>(request_input.prompt.size())),
      tokens(std::move(request_input.prompt)) {}

void EngineRequest::append(Token token, const std::string& weight_version) {
  const std::uint32_t index = num_output_tokens();
  tokens.push_back(token);
  if (weight_versions.empty() || weight_versions.back().version != weight_version) {
    weight_versions.push_back({.version = weight_version, .start = index, .end = index});
  }
  weight_versions.back().end = index + 1;
}

}  // namespace newmoon
