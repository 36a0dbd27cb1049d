#include "estimates/latency_refiner.h"

#include <algorithm>
#include <cmath>

namespace hocket {
namespace {

LatencyModel::Linear prior_variance(const LatencyModel& model, double deviation) {
  LatencyModel::Linear variance = model.linear();
  for (double& v : variance) v = deviation * deviation * v * v;
  return variance;
}

}  // namespace

LatencyRefiner::LatencyRefiner(const LatencyModel& model, const LatencyRefinerOptions& options)
    : options_(options),
      steady_(model),
      model_(model),
      estimate_(model.linear(), prior_variance(model, options.prior_deviation), options.forgetting) {}

void LatencyRefiner::observe(const BatchFeatures& features, double seconds) {
  const double predicted = model_.predict(features);
  if (!(seconds > 0.0) || !(predicted > 0.0)) return;
  if (++num_observed_ % options_.held_out_every == 0) {
    ++num_held_out_;
    error_sum_ = options_.error_memory * error_sum_ + std::abs(predicted - seconds) / seconds;
    error_weight_ = options_.error_memory * error_weight_ + 1.0;
    return;
  }
  const double credible = std::clamp(seconds / predicted, 1 - options_.max_surprise, 1 + options_.max_surprise);
  log_factor_ += options_.speed_gain * std::log(credible);
  learn(features, seconds);
  LatencyModel::Linear linear = steady_.linear();
  const double factor = std::exp(log_factor_);
  for (double& cost : linear) cost *= factor;
  model_.set_linear(linear);
}

void LatencyRefiner::learn(const BatchFeatures& features, double seconds) {
  const double predicted = steady_.predict(features);
  const double surprise = options_.max_surprise * predicted;
  const double credible = std::clamp(seconds, predicted - surprise, predicted + surprise);
  estimate_.update(steady_.regressors(features), credible, 1.0 / (credible * credible));
  LatencyModel::Linear linear;
  // No cost is negative, whatever the measurements of one kind of step say.
  std::ranges::transform(estimate_.theta(), linear.begin(), [](double theta) { return std::max(theta, 0.0); });
  steady_.set_linear(linear);
}

}  // namespace hocket
