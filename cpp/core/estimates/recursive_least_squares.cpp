#include "estimates/recursive_least_squares.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace hocket {

RecursiveLeastSquares::RecursiveLeastSquares(std::span<const double> theta, std::span<const double> variance,
                                             double forgetting)
    : size_(static_cast<int>(theta.size())), forgetting_(forgetting) {
  HOCKET_CHECK(size_ >= 1 && size_ <= kMaxSize && variance.size() == theta.size(),
               "1 to 16 coefficients, one variance each");
  HOCKET_CHECK(forgetting > 0.0 && forgetting <= 1.0, "forgetting must lie in (0, 1]");
  for (int i = 0; i < size_; ++i) {
    theta_[i] = theta[i];
    covariance_[i][i] = variance[i];
    max_variance_[i] = kMaxGrowth * variance[i];
  }
}

double RecursiveLeastSquares::predict(std::span<const double> x) const {
  double y = 0.0;
  for (int i = 0; i < size_; ++i) y += x[i] * theta_[i];
  return y;
}

bool RecursiveLeastSquares::update(std::span<const double> x, double y, double weight) {
  HOCKET_CHECK(static_cast<int>(x.size()) == size_, "one regressor per coefficient");
  Vector px{};
  double spread = 0.0;
  for (int i = 0; i < size_; ++i) {
    for (int j = 0; j < size_; ++j) px[i] += covariance_[i][j] * x[j];
    spread += x[i] * px[i];
  }
  const double error = y - predict(x);
  if (!(weight > 0.0) || !std::isfinite(error) || !std::isfinite(spread)) return false;

  const double scale = 1.0 / (forgetting_ / weight + spread);
  for (int i = 0; i < size_; ++i) {
    theta_[i] += px[i] * scale * error;
    for (int j = 0; j < size_; ++j) covariance_[i][j] = (covariance_[i][j] - px[i] * px[j] * scale) / forgetting_;
  }
  cap_variances();
  end_below_zero();
  return true;
}

// By conditioning on the coefficient's being 0. Another one may become negative by it, so there are several rounds.
void RecursiveLeastSquares::end_below_zero() {
  constexpr int kMaxRounds = 4;
  for (int round = 0; round < kMaxRounds; ++round) {
    if (std::all_of(theta_.begin(), theta_.begin() + size_, [](double theta) { return theta >= 0.0; })) return;
    for (int i = 0; i < size_; ++i) {
      if (theta_[i] >= 0.0) continue;
      const double shift = covariance_[i][i] > 0.0 ? theta_[i] / covariance_[i][i] : 0.0;
      for (int j = 0; j < size_; ++j) theta_[j] -= covariance_[j][i] * shift;
      theta_[i] = 0.0;
    }
  }
  for (double& theta : theta_) theta = std::max(theta, 0.0);
}

// Scaling a row and its column by the same factor keeps the matrix a covariance.
void RecursiveLeastSquares::cap_variances() {
  for (int i = 0; i < size_; ++i) {
    if (covariance_[i][i] <= max_variance_[i]) continue;
    const double factor = std::sqrt(max_variance_[i] / covariance_[i][i]);
    for (int j = 0; j < size_; ++j) {
      covariance_[i][j] *= factor;
      covariance_[j][i] *= factor;
    }
  }
}

}  // namespace hocket
