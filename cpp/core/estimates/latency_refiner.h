// Keeps a latency model true while the engine runs, from measured step times, and knows its own error.
//
// Every held_out_every-th step only tests the model, before it could learn from it. The others teach it two things.
// What kinds of work cost: the linear coefficients, by recursive least squares on relative errors, over thousands of
// steps, since a kind of which there is one in a hundred must not be forgotten for the others' noise. And how fast the
// machine is just now, which on a shared one changes by the second: a factor common to all coefficients, the
// exponential mean of what the last few steps were off by.
//
// A single step moves the model at most as far as one that took (1 +- max_surprise) times its prediction would: a page
// fault or a pause of the collector is not a trend.
//
// Thread safety: none. No allocation.
#pragma once

#include <cstdint>

#include "estimates/latency_model.h"
#include "estimates/recursive_least_squares.h"

namespace hocket {

struct LatencyRefinerOptions {
  double forgetting = 0.9995;    // weight of the step before last over the last; 0.9995: some 2000 steps count
  double prior_deviation = 0.3;  // how far off a calibrated coefficient may be, relative; larger: follows faster
  double max_surprise = 0.5;     // relative
  double speed_gain = 0.3;       // weight of the last step in the factor; 0: there is none
  int32_t held_out_every = 10;   // steps; >= 2
  double error_memory = 0.99;    // of the running mean error, per held-out step
};

class LatencyRefiner {
 public:
  LatencyRefiner(const LatencyModel& model, const LatencyRefinerOptions& options = {});

  const LatencyModel& model() const { return model_; }

  // One executed step. Ignored if it is empty or took no time.
  void observe(const BatchFeatures& features, double seconds);

  // Running mean of |predicted - measured| / measured over held-out steps; 0 before the first.
  double mean_relative_error() const { return error_weight_ > 0 ? error_sum_ / error_weight_ : 0.0; }
  int64_t num_held_out() const { return num_held_out_; }
  int64_t num_observed() const { return num_observed_; }

 private:
  void learn(const BatchFeatures& features, double seconds);

  LatencyRefinerOptions options_;
  LatencyModel steady_;  // without the factor
  LatencyModel model_;
  double log_factor_ = 0.0;
  RecursiveLeastSquares estimate_;
  int64_t num_observed_ = 0;
  int64_t num_held_out_ = 0;
  double error_sum_ = 0.0;
  double error_weight_ = 0.0;
};

}  // namespace hocket
