// By how much a step may be planned shorter than its deadline allows, learnt from how much longer steps take than
// predicted.
//
// A prediction is right on average; a target that one token in a hundred may miss, or none of a short answer, is kept
// by planning for the worst that is still usual. So the margin is the largest (measured / predicted) of the steps that
// it is about, forgotten slowly: it follows a longer step at once, at most to kMost, and what it exceeds 1 by shrinks
// by one part in (kFirstSteps + steps so far) per step, at least by one in kMemory.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>

namespace hocket {

class StepMargin {
 public:
  static constexpr double kLeast = 1.0 / 0.95;  // predictions are off by some percent
  static constexpr double kMost = 2.5;
  static constexpr double kFirstSteps = 200;
  static constexpr double kMemory = 20000;  // steps
  static constexpr double kLongShare = 0.3;

  // initial: before any step was seen.
  explicit StepMargin(double initial = kLeast) : worst_(initial) {}

  // Times the predicted time of a step is to fit into what its deadline leaves.
  double value() const { return std::clamp(worst_, kLeast, kMost); }

  // A step that took `measured` seconds where `limit` were allowed. Short ones say nothing about those that fill their
  // time: below kLongShare of the limit they do not count.
  void observe(double predicted, double measured, double limit) {
    if (!(predicted > 0) || predicted < kLongShare * limit) return;
    num_steps_ += 1;
    const double shrunk = (worst_ - 1) * (1 - 1 / std::min(kFirstSteps + num_steps_, kMemory));
    worst_ = std::clamp(measured / predicted, 1 + shrunk, std::max(kMost, 1 + shrunk));
  }

 private:
  double worst_;
  double num_steps_ = 0;
};

}  // namespace hocket
