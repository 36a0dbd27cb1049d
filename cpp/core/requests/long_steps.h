// Where prompts need more time than readers are promised, long steps now and then, instead of many that are a little
// too long.
//
// What readers are promised between two tokens is promised for 99 of 100. Steps that are all stretched by a little
// break it for everybody, and one that computes as many prompts as it can breaks it once. So steps keep the promise,
// and what prompts lack is owed: once that fills a step kMostStretch times as long as is promised, it is taken. No such
// step is longer than kMostSeconds, which is noticed: where the promise itself is of that size, steps are stretched
// evenly. Nothing is owed once the promise suffices.
//
// The prompts' share of the time is the same, and so is, nearly, the wait for a first token
// (docs/log/2026-11-28-what-prompts-lack-is-owed.md).
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>

#include "requests/patience.h"

namespace hocket {

class LongSteps {
 public:
  static constexpr double kMostSeconds = 0.25;

  // To which prompts may stretch the next step. wanted_seconds: for those that wait, evenly. kept_seconds: that a step
  // may be predicted to take, so that it takes promised_seconds at most.
  double seconds(double wanted_seconds, double kept_seconds, double promised_seconds) {
    const double longest = std::min(Patience::kMostStretch * promised_seconds, kMostSeconds);
    if (wanted_seconds <= kept_seconds) owed_seconds_ = 0.0;
    if (wanted_seconds <= kept_seconds || wanted_seconds >= longest) return wanted_seconds;
    owed_seconds_ += wanted_seconds - kept_seconds;
    if (owed_seconds_ < longest - kept_seconds) return kept_seconds;
    owed_seconds_ -= longest - kept_seconds;
    return longest;
  }

 private:
  double owed_seconds_ = 0.0;
};

}  // namespace hocket
