// By how much a step may be planned shorter than its deadline allows, learnt from how much longer steps take than
// predicted.
//
// A prediction is right on average. A target that no gap of a short answer may miss, while a step that is late is late
// for everybody, is kept only by planning for what happens once in thousands of steps. So the margin goes by the worst
// (measured / predicted) of the steps that it is about, and by kTail more, since what is yet to come may be worse than
// what was seen. It follows a longer step at once and forgets slowly. Until there is experience, a first value counts.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>

namespace hocket {

class StepMargin {
 public:
  static constexpr double kLeast = 1.0 / 0.95;  // predictions are off by some percent
  static constexpr double kTail = 1.3;          // of what exceeds 1
  static constexpr double kWorst = 2.0;         // beyond it, it was an accident
  static constexpr double kFirstSteps = 300;    // that the first value counts for, about
  static constexpr double kMemory = 20000;      // steps
  static constexpr double kLongShare = 0.3;

  explicit StepMargin(double first = kLeast) : first_(first) {}

  // Times the predicted time of a step is to fit into what its deadline leaves.
  double value() const { return std::max({kLeast, 1 + kTail * (worst_ - 1), 1 + (first_ - 1) * first_weight_}); }

  // A step that took `measured` seconds where `limit` were allowed. Short ones say nothing about those that fill their
  // time: below kLongShare of the limit they do not count.
  void observe(double predicted, double measured, double limit) {
    if (!(predicted > 0) || predicted < kLongShare * limit) return;
    first_weight_ *= 1 - 1 / kFirstSteps;
    worst_ = std::max(1 + (worst_ - 1) * (1 - 1 / kMemory), std::min(measured / predicted, kWorst));
  }

 private:
  double first_;
  double first_weight_ = 1;
  double worst_ = 1;
};

}  // namespace hocket
