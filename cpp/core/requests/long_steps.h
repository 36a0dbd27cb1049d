// Where prompts need more time than readers are promised, long steps now and then, instead of many that are a little
// too long.
//
// What readers are promised between two tokens is promised for 99 of 100. Steps that are all stretched by a little
// break it for everybody, and one that computes as many prompts as it can breaks it once. So steps keep the promise,
// and what prompts lack is owed: once that fills a step kMostStretch times as long as is promised, it is taken. No such
// step is longer than kMostSeconds, which is noticed: where the promise itself is of that size, steps are stretched
// evenly. Nothing is owed once the promise suffices.
//
// Where decodes alone fill what is promised, prompts that still advance in every step make each of them a little too
// long. That is the price as long as long steps are rare. Once they are more than kBroken of all, they break the
// promise alone, so what is left of it is not given away as well: prompts wait for the long step that is owed.
//
// And where as many wait as read along, one step in kEvery may take as long as computes all of their prompts, up to
// kTogetherSeconds: who reads meets one gap instead of a row of full steps, and who waits comes in together.
//
// The prompts' share of the time is the same, and so is, nearly, the wait for a first token
// (docs/log/2026-11-28-what-prompts-lack-is-owed.md).
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "requests/patience.h"

namespace hocket {

class LongSteps {
 public:
  static constexpr double kMostSeconds = 0.25;
  static constexpr double kBroken = 0.01;  // of steps: the promise is one for 99 of 100
  static constexpr double kMemory = 1000;  // steps
  static constexpr int32_t kEvery = 128;   // steps, of which one is less than a hundredth
  static constexpr double kTogetherSeconds = 0.05;

  // To which prompts may stretch the next step. wanted_seconds: for those that wait, evenly. kept_seconds: that a step
  // may be predicted to take, so that it takes promised_seconds at most. together_seconds: that computes all of them,
  // where as many wait as read.
  double seconds(double wanted_seconds, double kept_seconds, double promised_seconds,
                 double together_seconds = std::numeric_limits<double>::infinity()) {
    const double longest = std::min(Patience::kMostStretch * promised_seconds, kMostSeconds);
    double seconds = next(wanted_seconds, kept_seconds, longest);
    const double together = std::min(kTogetherSeconds, longest);
    if (num_kept_ >= kEvery && seconds < together_seconds && together_seconds <= together) {
      seconds = together;
      owed_seconds_ = 0.0;
      is_owing_ = false;
    }
    const bool is_long = seconds > std::max(kept_seconds, promised_seconds);
    num_kept_ = is_long ? 0 : num_kept_ + 1;
    long_share_ += (is_long - long_share_) / kMemory;
    return seconds;
  }

  // The next step is bound by nobody who reads along.
  void nobody_reads() { is_owing_ = false; }

  // Whether prompts get nothing for which seconds() left no room, since a long step is owed.
  bool holds_back() const { return is_owing_ && long_share_ > kBroken; }

 private:
  double next(double wanted_seconds, double kept_seconds, double longest) {
    is_owing_ = false;
    if (wanted_seconds <= kept_seconds) owed_seconds_ = 0.0;
    if (wanted_seconds <= kept_seconds || wanted_seconds >= longest) return wanted_seconds;
    owed_seconds_ += wanted_seconds - kept_seconds;
    is_owing_ = owed_seconds_ < longest - kept_seconds;
    if (is_owing_) return kept_seconds;
    owed_seconds_ -= longest - kept_seconds;
    return longest;
  }

  double owed_seconds_ = 0.0;
  double long_share_ = 0.0;  // of the last steps
  bool is_owing_ = false;
  int64_t num_kept_ = 0;  // steps since the last long one
};

}  // namespace hocket
