// Gaps between tokens, counted in bins whose edges grow by 1 %: any percentile of any number of gaps within 1 %, in
// constant memory.
//
//   bin 0 counts gaps below kSmallest; bin b >= 1 those in [kSmallest 1.01^(b-1), kSmallest 1.01^b); the last bin all
//   that are longer.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace hocket {

class ItlHistogram {
 public:
  static constexpr double kSmallest = 1e-5;  // seconds
  static constexpr double kGrowth = 1.01;
  static constexpr int kNumBins = 2000;  // the last edge is over an hour

  void add(double seconds) {
    if (seconds != last_seconds_) {  // requests that decode together see one gap
      last_seconds_ = seconds;
      last_bin_ = bin_of(seconds);
    }
    ++counts_[last_bin_];
  }

  const std::array<int64_t, kNumBins>& counts() const { return counts_; }

 private:
  static int bin_of(double seconds) {
    if (seconds < kSmallest) return 0;
    const double bin = std::log(seconds / kSmallest) / std::log(kGrowth);
    return 1 + static_cast<int>(std::min(bin, kNumBins - 2.0));
  }

  std::array<int64_t, kNumBins> counts_ = {};
  double last_seconds_ = 0.0;
  int last_bin_ = 0;
};

}  // namespace hocket
