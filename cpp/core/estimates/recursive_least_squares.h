// Least squares that follows a drifting truth: one O(n^2) update per observation (n <= 16 coefficients).
//
// After k observations (x_i, y_i, w_i) theta minimises, as long as no guard had to act,
//
//   f^k |theta - theta_0|^2 / v_0  +  sum over i of f^(k-i) w_i (y_i - x_i . theta)^2
//
// f forgetting (1: remember all; 0.99: the last hundred or so), v_0 the prior variance per coefficient; 0 pins it.
//
// Guards: a coefficient that an update makes negative becomes 0, and the others are then the best ones beside it (set
// to 0 alone, it would raise what the observations know well, a little with every update); a variance never grows
// beyond kMaxGrowth times its prior, where forgetting would carry that of a coefficient about which the recent
// observations say nothing; an observation that is not finite, or whose weight is not positive, is ignored.
//
// Thread safety: none. No allocation.
#pragma once

#include <array>
#include <span>

namespace hocket {

class RecursiveLeastSquares {
 public:
  static constexpr int kMaxSize = 16;
  static constexpr double kMaxGrowth = 10.0;

  // REQUIRES: theta and variance of one length, 1..kMaxSize; variance >= 0; 0 < forgetting <= 1.
  RecursiveLeastSquares(std::span<const double> theta, std::span<const double> variance, double forgetting);

  // REQUIRES: x has size() entries. False if the observation was ignored.
  bool update(std::span<const double> x, double y, double weight = 1.0);

  double predict(std::span<const double> x) const;
  int size() const { return size_; }
  std::span<const double> theta() const { return {theta_.data(), static_cast<size_t>(size_)}; }
  double variance(int i) const { return covariance_[i][i]; }

 private:
  using Vector = std::array<double, kMaxSize>;

  void cap_variances();
  void end_below_zero();

  int size_;
  double forgetting_;
  Vector theta_{};
  Vector max_variance_{};
  std::array<Vector, kMaxSize> covariance_{};
};

}  // namespace hocket
