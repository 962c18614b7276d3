#include "store/mooncake/error_code.h"

#include <array>

namespace newmoon {
namespace {

struct Row {
  std::int64_t code;
  Code meaning;
  std::string_view text;
};

// A transfer that fails is about one segment, whose owner may just have died: the value is
// not to be had (a put found no place), the store is still there. So they are no
// kUnavailable, which says that of the whole store.
constexpr std::array kRows = {
    Row{-101, Code::kMiss, "its segment is gone"},
    Row{kMooncakeFull, Code::kBusy, "the store is full"},
    Row{kMooncakeInvalidParams, Code::kBadRequest, "invalid parameters"},
    Row{kMooncakeBeingWritten, Code::kMiss, "it is being written"},
    Row{kMooncakeNotFound, Code::kMiss, "it is not there"},
    Row{-705, Code::kBusy, "it is there"},
    Row{-706, Code::kBusy, "it is leased"},
    Row{-707, Code::kMiss, "its lease ended during the read"},
    Row{-800, Code::kBusy, "the transfer failed"},
    Row{-801, Code::kCorrupt, "the transfer's checksum differs"},
    Row{-900, Code::kUnavailable, "the master does not answer"},
    Row{-901, Code::kDeadline, "the master did not answer in time"},
    Row{-1700, Code::kBadRequest, "the tenant is invalid"},
    Row{-1701, Code::kBusy, "the tenant's quota is used up"},
    Row{-1702, Code::kBadRequest, "the tenant is unknown"},
};

}  // namespace

Error mooncake_error(std::string_view what, std::int64_t code) {
  Code meaning = Code::kInternal;
  std::string_view text = "an error of no known kind";
  for (const Row& row : kRows) {
    if (row.code != code) continue;
    meaning = row.meaning;
    text = row.text;
  }
  return {meaning, "mooncake " + std::string(what) + ": " + std::string(text) + " (code " +
                       std::to_string(code) + ")"};
}

}  // namespace newmoon
