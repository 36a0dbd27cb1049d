// How many more tokens will a request sample? From the lengths of those that have finished, by request class.
//
// The rest of an answer that has `n` tokens is distributed as L - n over finished answers with L > n, in bins of an
// eighth of an octave: its mean, or a quantile of it. Older answers fade: the last few hundred count. A prior of a few
// answers of geometric length stands for what was never seen.
//
// O(1) to ask, O(bins) per observation. No allocation after construction. Thread safety: none.
#pragma once

#include <array>
#include <cstdint>

#include "base/request_class.h"

namespace hocket {

class OutputForecast {
 public:
  // quantile: of the rest, 0 < quantile < 1; 0: its mean.
  explicit OutputForecast(double quantile = 0.0);

  // A request of that class finished with `num_tokens` output tokens, at least 1.
  void observe(int32_t request_class, int32_t num_tokens);

  // Further tokens of a request with `num_tokens` output tokens, at least 1: the mean, or the quantile.
  float rest(int32_t request_class, int32_t num_tokens) const { return rest_[request_class][bin_of(num_tokens)]; }

 private:
  static constexpr int32_t kBinsPerOctave = 8;
  static constexpr int32_t kNumBins = 20 * kBinsPerOctave;
  using Bins = std::array<float, kNumBins>;

  static int32_t bin_of(int32_t num_tokens);
  void refresh(int32_t request_class);
  void refresh_means(const Bins& weights, Bins* rest) const;
  void refresh_quantiles(const Bins& weights, Bins* rest) const;

  float quantile_;
  std::array<Bins, kNumRequestClasses> weights_;
  std::array<Bins, kNumRequestClasses> rest_;
  Bins middles_;  // tokens
};

}  // namespace hocket
