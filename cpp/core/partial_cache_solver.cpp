#include "partial_cache_solver.h"

#include <algorithm>

namespace hocket {
namespace {

constexpr double kTie = 1e-12;  // relative; of equal answers the larger batch

// Smallest r for which `sum` tokens fit; above 1 if there is none.
double smallest_ratio(const StepCosts& costs, double sum, double memory_bytes) {
  const double excess = costs.kv_bytes_per_token * sum - memory_bytes;
  if (excess <= 0.0) return 0.0;
  const double saved = (costs.kv_bytes_per_token - costs.workspace_bytes_per_token) * sum;
  return excess <= saved ? excess / saved : 2.0;
}

// StepCosts with the divisions done: seconds of compute and of memory traffic.
struct StepSeconds {
  explicit StepSeconds(const StepCosts& c)
      : form(c.form),
        token(c.flops_per_token / c.flops_per_second),
        pair(c.flops_per_pair / c.flops_per_second),
        logit(c.flops_per_logit / c.flops_per_second),
        weights(c.weight_bytes / c.bytes_per_second),
        head(c.head_bytes / c.bytes_per_second),
        kv(c.kv_bytes_per_token / c.bytes_per_second) {}

  double of(double b, double sum, double sum_of_squares, double r) const {
    const double tokens = b + r * sum;
    if (form == StepCostForm::kFlops) {
      return tokens * token + (sum + b + r * r * sum_of_squares) * pair + (1.0 + r) * sum * logit;
    }
    const double pairs = sum + b + 0.5 * r * r * sum_of_squares;
    return std::max(weights, tokens * token) + std::max((1.0 + r) * sum * kv, pairs * pair) + std::max(head, b * logit);
  }

  StepCostForm form;
  double token, pair, logit;  // per token, pair of tokens, row of logits
  double weights, head, kv;   // per step, step, token
};

}  // namespace

double partial_cache_seconds(const StepCosts& costs, double b, double sum, double sum_of_squares, double r) {
  return StepSeconds(costs).of(b, sum, sum_of_squares, r);
}

PartialCacheChoice solve_partial_cache(const StepCosts& costs, const PartialCacheProblem& problem) {
  const auto num_requests = static_cast<double>(problem.lengths.size());
  const StepSeconds step(costs);
  PartialCacheChoice best;
  double sum = 0.0;
  double sum_of_squares = 0.0;
  double b = 0.0;
  for (const int32_t length : problem.lengths) {
    const double s = length;
    b += 1.0;
    sum += s;
    sum_of_squares += s * s;
    const double r = smallest_ratio(costs, sum, problem.memory_bytes);
    if (r > 1.0) break;
    const double seconds = step.of(b, sum, sum_of_squares, r);
    if (seconds > problem.max_seconds) break;
    if (b * best.seconds * (1.0 + kTie) >= best.batch_size * seconds) {
      best = {.batch_size = static_cast<int32_t>(b), .uncached_ratio = r, .seconds = seconds};
    }
    // No larger batch takes less time than this one.
    if (num_requests * best.seconds <= best.batch_size * seconds) break;
  }
  return best;
}

}  // namespace hocket
