// One step in many may be long for the sake of first tokens, instead of many that are a little too long.
//
// What readers are promised between two tokens is promised for 99 of 100. Where prompts need more time than that leaves
// them, steps that are all stretched by a little break it for everybody, and one that computes as many prompts as it
// can breaks it once. So of kEvery steps one may be kMostStretch times as long as is promised, and no longer than
// kMostSeconds, which is noticed: where the promise itself is of that size, steps are stretched evenly.
//
// Why 300, and no more often: the errors of step times take most of that hundredth already
// (docs/log/2026-11-28-one-long-step.md).
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <cstdint>

#include "requests/patience.h"

namespace hocket {

class LongSteps {
 public:
  static constexpr int64_t kEvery = 300;
  static constexpr double kMostSeconds = 0.25;

  // To which prompts may stretch the next step. wanted_seconds: for those that wait, evenly. kept_seconds: that a step
  // may be predicted to take, so that it takes promised_seconds at most.
  double seconds(double wanted_seconds, double kept_seconds, double promised_seconds) {
    ++num_since_;
    if (wanted_seconds <= kept_seconds || num_since_ < kEvery) return wanted_seconds;
    const double longest = std::min(Patience::kMostStretch * promised_seconds, kMostSeconds);
    if (longest <= wanted_seconds) return wanted_seconds;
    num_since_ = 0;
    return longest;
  }

 private:
  int64_t num_since_ = 0;  // steps beside readers, since the last long one
};

}  // namespace hocket
