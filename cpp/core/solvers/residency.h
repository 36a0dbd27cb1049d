// What the b/r solver says of a step: how many online requests may be in memory, which share of their tokens is
// recomputed in it instead of being cached and, where that is none, why.
#pragma once

#include <cstdint>
#include <limits>

namespace hocket {

// Why r is 0, or that it is not.
enum class RatioReason : uint8_t {
  kRecomputes = 0,      // r > 0
  kNotAllowed = 1,      // without partial caching, or under a policy that does not use it
  kMemorySuffices = 2,  // all that is known of everybody fits as K and V
  kUnknownTimes = 3,    // nothing is known of step times
  kOthersGiveWay = 4,   // somebody lost memory in this step: it is short as it is
  kNobodyMayLack = 5,   // who is left out shares its first blocks, is late, or is owed a whole place
  kTooFewBlocks = 6,    // what could be given up is not enough to let anybody in
  kCostsMore = 7,       // recomputing would cost everybody more than who came in would bring
  kTargets = 8,         // the step would end after somebody's token is due
};
inline constexpr int kNumRatioReasons = 9;

struct Residency {
  static constexpr int32_t kEverybody = std::numeric_limits<int32_t>::max();

  int32_t max_running = kEverybody;  // b: T(b, r) + WT <= SLO; who runs already is not given up for it
  double uncached_ratio = 0.0;       // r: of their tokens that nobody shares
  RatioReason reason = RatioReason::kNotAllowed;
};

}  // namespace hocket
