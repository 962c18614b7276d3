#include "cli/model_files.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace newmoon {
namespace {

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Texts, as far as they are there; the solution may be missing.
bool is_problem(const nlohmann::json& line) {
  return line.is_object() && line.contains("prompt") && line["prompt"].is_string() &&
         line.value("canonical_solution", nlohmann::json("")).is_string();
}

}  // namespace

std::string cache_folder() {
  if (std::string folder = from_environment("NEWMOON_CACHE"); !folder.empty()) return folder;
  if (std::string folder = from_environment("XDG_CACHE_HOME"); !folder.empty()) {
    return folder + "/newmoon";
  }
  return from_environment("HOME") + "/.cache/newmoon";
}

ModelFiles default_model_files() {
  const std::string folder = cache_folder();
  return {
      .base = folder + "/models/base.gguf",
      .other = folder + "/models/other.gguf",
      .adapter = folder + "/models/adapter.gguf",
      .problems = folder + "/data/humaneval.jsonl",
  };
}

Result<PromptSet> load_prompts(const std::string& path, int shots) {
  std::ifstream file(path);
  if (!file) {
    return fail(Code::kUnavailable,
                "cannot read the problems file " + path + "; run ./dev setup or give --problems");
  }
  PromptSet prompts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const nlohmann::json problem = nlohmann::json::parse(line, nullptr, false);
    if (!is_problem(problem)) {
      return fail(Code::kBadRequest,
                  path + " line " + std::to_string(number) + " is not a HumanEval problem");
    }
    const std::string prompt = problem["prompt"];
    const nlohmann::json solution = problem.value("canonical_solution", nlohmann::json(""));
    if (number <= shots) {
      prompts.prefix += prompt + solution.get<std::string>() + "\n\n";
    } else {
      prompts.problems.push_back(prompt);
    }
  }
  if (!file.eof()) {
    return fail(Code::kUnavailable, "cannot read the problems file " + path);
  }
  if (prompts.problems.empty()) {
    return fail(Code::kBadRequest, path + " holds no more than " + std::to_string(shots) +
                                       " problems; the prefix alone takes them");
  }
  return prompts;
}

}  // namespace newmoon
