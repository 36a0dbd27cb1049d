#include "simulation/step_errors.h"

#include <stdexcept>

namespace hocket {

StepErrors::StepErrors(std::span<const double> quantiles, uint64_t seed)
    : quantiles_(quantiles.begin(), quantiles.end()), state_(seed) {
  const bool is_positive = std::ranges::all_of(quantiles_, [](double ratio) { return ratio > 0; });
  if (!is_positive || !std::ranges::is_sorted(quantiles_)) {
    throw std::invalid_argument("the quantiles of step errors must be positive and ascend");
  }
}

double StepErrors::next() {
  if (quantiles_.empty()) return 1.0;
  if (has_drawn_ && uniform() >= 1 / kSteps) return ratio_;
  has_drawn_ = true;
  const double place = uniform() * static_cast<double>(quantiles_.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, quantiles_.size() - 1);
  const double share = place - static_cast<double>(below);
  ratio_ = quantiles_[below] + share * (quantiles_[above] - quantiles_[below]);
  return ratio_;
}

// SplitMix64, the upper 53 bits.
double StepErrors::uniform() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

}  // namespace hocket
