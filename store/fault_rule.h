// What a FaultyStore does wrong, and when: a list of rules, as text for
// `--faults SPEC`:
//
//   SPEC   = RULE { "," RULE }
//   RULE   = OP { ":" FIELD }
//   OP     = "put" | "get" | "hit" | "purge" | "ping"
//   FIELD  = MATCH | EFFECT
//   MATCH  = "rank=" N       items of tensor-parallel rank N only (put, get, hit)
//          | "nth=" N        the N-th call that has such an item, counted from 1
//          | "every=" N      each N-th one
//          | "count=" N      at most N times (1 with nth)
//          | "marked"        calls since the last mark only, counted anew from each; the
//                            owner of the store sets marks (FaultyStore::mark())
//          | "share=" P      P percent of the items, drawn at random (put and get)
//   EFFECT = "fail=" CODE    miss, bad_request, ...: the wire names of base/result.cc
//          | "delay_ms=" N   the call takes N ms longer
//          | "when=" WHEN    whether delay and failure come "before" the bytes are
//                            copied (the default) or "after"; see below
//          | "late_ms=" N    put only: answers kDeadline at once, with the bytes as
//                            they are now; they are stored N ms later, before the
//                            first call after that
//          | "truncate"      the second half of the payload is missing
//          | "corrupt"       one bit of the payload is flipped (put, get)
//          | "drop"          put: success, nothing stored; get: a miss; hit: none;
//                            purge: success, nothing purged
//
// A rule needs an effect; without nth and every it applies to each call.
// A put delayed "after" stores, late, the bytes as they were at the call; "before",
// those of N ms later. A get delayed "before" writes into the caller's buffers late;
// "after", it has written them and says so late. A call that fails "after" has done
// its work.
//
//   put:rank=1:nth=3:delay_ms=400,get:rank=0:every=5:fail=unavailable
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace newmoon {

struct FaultRule {
  enum class Op : std::uint8_t { kPut, kGet, kHit, kPurge, kPing };
  enum class When : std::uint8_t { kBefore, kAfter };

  Op op = Op::kPut;
  std::optional<std::uint16_t> rank = std::nullopt;
  std::uint64_t nth = 0;  // 0: any
  std::uint64_t every = 1;
  std::uint64_t count = 0;  // 0: no limit
  unsigned share_percent = 100;
  bool marked = false;

  std::optional<Code> fail = std::nullopt;
  Duration delay{0};
  When when = When::kBefore;
  Duration late{0};
  bool truncate = false;
  bool corrupt = false;
  bool drop = false;
  // Only from code: the call waits until FaultyStore::release(hold); "": it does not.
  std::string hold = "";
};

// kBadRequest: names the rule and the field.
Result<std::vector<FaultRule>> parse_fault_rules(std::string_view spec);

}  // namespace newmoon
