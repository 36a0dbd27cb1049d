// Quantiles of positive numbers of which old ones fade, in constant memory.
//
// Bins whose edges grow by 1 %: bin 0 has what is below kSmallest, bin b >= 1 [kSmallest 1.01^(b-1), kSmallest 1.01^b),
// the last one all that is larger. A quantile is the upper edge of its bin, so at most 1 % above the number that has
// this place among all, and never below it; outside the edges it is the nearest edge. Each number weighs
// 1 - 1 / memory times as much as the next one: new ones weigh more and more, and all weights are scaled down once they
// are large.
//
// observe(): O(1), every some memory x 14 numbers O(bins). quantile(), mean_excess(): O(bins).
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

namespace hocket {

class QuantileSketch {
 public:
  static constexpr double kSmallest = 0.125;
  static constexpr double kGrowth = 1.01;
  static constexpr int kNumBins = 420;  // the last edge is 8

  // memory: how many numbers count, about; > 1.
  explicit QuantileSketch(double memory) : increment_growth_(memory / (memory - 1)) {}

  // REQUIRES: value > 0.
  void observe(double value) {
    weights_[bin_of(value)] += increment_;
    sum_ += increment_;
    increment_ *= increment_growth_;
    if (increment_ > kLargest) rescale();
  }

  // How many numbers count, the last one as 1.
  double num_values() const { return sum_ * increment_growth_ / increment_; }

  // The number that a share q of all does not exceed, 0 <= q <= 1; 0 before the first.
  double quantile(double q) const {
    if (sum_ == 0) return 0;
    double above = 0;
    int bin = kNumBins - 1;
    for (; bin > 0; --bin) {
      above += weights_[bin];
      if (above > (1 - q) * sum_) break;
    }
    return edge(bin);
  }

  // By how much the numbers above `value` exceed it, as a mean over the share 1 - q of all; 0 <= q < 1.
  double mean_excess(double value, double q) const {
    double excess = 0;
    for (int bin = kNumBins - 1; bin > 0 && edge(bin) > value; --bin) excess += weights_[bin] * (edge(bin) - value);
    return sum_ > 0 ? excess / ((1 - q) * sum_) : 0;
  }

 private:
  static constexpr double kLargest = 1e6;  // weight of a number

  static int bin_of(double value) {
    if (!(value >= kSmallest)) return 0;
    return 1 + static_cast<int>(std::min(std::log(value / kSmallest) / std::log(kGrowth), kNumBins - 2.0));
  }
  static double edge(int bin) {
    static const std::array<double, kNumBins> edges = [] {
      std::array<double, kNumBins> values;
      for (int b = 0; b < kNumBins; ++b) values[b] = kSmallest * std::pow(kGrowth, b);
      return values;
    }();
    return edges[bin];
  }
  void rescale() {
    for (double& weight : weights_) weight /= increment_;
    sum_ /= increment_;
    increment_ = 1;
  }

  double increment_growth_;
  double increment_ = 1;  // weight of the next number
  double sum_ = 0;
  std::array<double, kNumBins> weights_ = {};
};

}  // namespace hocket
