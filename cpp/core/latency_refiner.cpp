#include "latency_refiner.h"

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
  const double surprise = options_.max_surprise * predicted;
  const double credible = std::clamp(seconds, predicted - surprise, predicted + surprise);
  estimate_.update(model_.regressors(features), credible, 1.0 / (credible * credible));
  LatencyModel::Linear linear;
  // No cost is negative, whatever the measurements of one kind of step say.
  std::ranges::transform(estimate_.theta(), linear.begin(), [](double theta) { return std::max(theta, 0.0); });
  model_.set_linear(linear);
}

}  // namespace hocket
