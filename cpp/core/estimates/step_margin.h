// By how much a step may be planned shorter than its deadline allows, from how steps' times differ from what was
// predicted.
//
// A prediction is right on average, and a step that is late is late for everybody in it. So the margin is a quantile of
// (measured / predicted) over the last steps that it is about: one in 1 / (1 - q) of those that fill their time is
// late. The default of 0.999 is the least round number that keeps a P99 target of answers of any length. One of n gaps
// may exceed it with one more per hundred gaps (RequestTable::note_token()); if every step of an answer fills its time,
// the number of late ones is about Poisson with mean (1 - q) n, and more than 1 + n / 100 of them come
//
//   q         50 gaps   99 gaps   200 gaps   answers that miss their target
//   0.9       96 %      100 %     100 %
//   0.99      9.0 %     26 %      14 %
//   0.995     2.6 %     8.8 %     1.9 %
//   0.999     0.1 %     0.5 %     0.0 %
//
// If late steps come together, fewer answers have them and those have more: then it keeps them all the same.
//
// Until kBeyond of the steps lie above it, a quantile cannot be told from them: there the largest ones are continued as
// an exponential tail, whose mean is that of their excess. Until there is experience, a first value counts.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <cmath>

#include "estimates/quantile_sketch.h"

namespace hocket {

class StepMargin {
 public:
  static constexpr double kLeast = 1.0 / 0.95;  // predictions are off by some percent
  static constexpr double kWorst = 2.0;         // beyond it, it was an accident
  static constexpr double kFirstSteps = 300;    // that the first value counts for, about
  static constexpr double kMemory = 20000;      // steps
  static constexpr double kLongShare = 0.3;
  static constexpr double kReadersQuantile = 0.99;
  static constexpr double kBeyond = 10;  // steps above a quantile that is told from them alone

  explicit StepMargin(double first = kLeast) : first_(first), value_(std::max(kLeast, first)) {}

  // Which quantile counts from now on, 0 <= quantile < 1.
  void set_quantile(double quantile) { quantile_ = quantile; }

  // Times the predicted time of a step is to fit into what its deadline leaves.
  double value() const { return value_; }
  // The same for who reads along without a deadline: by kReadersQuantile, whatever the option says.
  double of_readers() const { return of_readers_; }

  // A step that took `measured` seconds where `limit` were allowed. Short ones say nothing about those that fill their
  // time: below kLongShare of the limit they do not count.
  void observe(double predicted, double measured, double limit) {
    if (!(predicted > 0) || !(measured > 0) || predicted < kLongShare * limit) return;
    first_weight_ *= 1 - 1 / kFirstSteps;
    ratios_.observe(std::min(measured / predicted, kWorst));
    value_ = std::max({kLeast, std::min(ratio(quantile_), kWorst), 1 + (first_ - 1) * first_weight_});
    of_readers_ = std::max(kLeast, std::min(ratio(kReadersQuantile), kWorst));
  }

 private:
  double ratio(double quantile) const {
    const double told = std::max(0.0, 1 - kBeyond / ratios_.num_values());
    if (quantile <= told) return ratios_.quantile(quantile);
    const double largest = ratios_.quantile(told);
    return largest + ratios_.mean_excess(largest, told) * std::log((1 - told) / (1 - quantile));
  }

  double first_;
  double value_;
  double of_readers_ = kLeast;
  double first_weight_ = 1;
  double quantile_ = 0.999;
  QuantileSketch ratios_{kMemory};
};

}  // namespace hocket
