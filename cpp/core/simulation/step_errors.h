// How much longer or shorter true steps are than predicted, drawn from a measured distribution.
//
// The distribution is given by quantiles of (measured / predicted) at equal steps from 0 to 1; between two of them it
// is taken to be even. What makes a step differ, another shape than the fit has seen or a machine that is busy, lasts:
// each draw holds for kSteps steps on average, a geometric number of them.
//
// The same arguments give the same errors, on every machine. Thread safety: none. No allocation in next().
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace hocket {

class StepErrors {
 public:
  static constexpr double kSteps = 8;

  // quantiles: ascending, positive; one of them is that ratio always, none is 1. Throws std::invalid_argument.
  StepErrors(std::span<const double> quantiles, uint64_t seed);

  // Measured over predicted, of the next step.
  double next();

 private:
  double uniform();  // in [0, 1)

  std::vector<double> quantiles_;
  uint64_t state_;
  double ratio_ = 1.0;
  bool has_drawn_ = false;
};

}  // namespace hocket
