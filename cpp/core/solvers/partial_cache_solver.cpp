#include "solvers/partial_cache_solver.h"

#include <algorithm>

namespace hocket {
namespace {

constexpr double kTie = 1e-12;  // relative; of equal answers the larger batch

// Smallest r for which `sum` tokens fit; above 1 if there is none. Per token: what it takes if it is cached, and if
// not.
double smallest_ratio(double cached, double uncached, double sum, double memory) {
  const double excess = cached * sum - memory;
  if (excess <= 0.0) return 0.0;
  const double saved = (cached - uncached) * sum;
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

// ratio(sum): the smallest r that memory allows. seconds(b, sum, sum_of_squares, r): never less for more of any of
// them.
template <typename Ratio, typename Seconds>
PartialCacheChoice scan(const PartialCacheProblem& problem, const Ratio& ratio, const Seconds& step_seconds) {
  const auto num_requests = static_cast<double>(problem.lengths.size());
  PartialCacheChoice best;
  double sum = 0.0;
  double sum_of_squares = 0.0;
  double b = 0.0;
  double max_seconds = problem.max_seconds;
  for (size_t i = 0; i < problem.lengths.size(); ++i) {
    const double s = problem.lengths[i];
    if (!problem.slack_seconds.empty()) max_seconds = std::min(max_seconds, problem.slack_seconds[i]);
    b += 1.0;
    sum += s;
    sum_of_squares += s * s;
    if (b < problem.min_batch_size) continue;
    const double r = ratio(sum);
    if (r > problem.max_ratio) break;
    const double seconds = step_seconds(b, sum, sum_of_squares, r);
    if (seconds > max_seconds) break;
    if (b * best.seconds * (1.0 + kTie) >= best.batch_size * seconds) {
      best = {.batch_size = static_cast<int32_t>(b), .uncached_ratio = r, .seconds = seconds};
    }
    // No larger batch takes less time than this one.
    if (num_requests * best.seconds <= best.batch_size * seconds) break;
  }
  return best;
}

}  // namespace

double partial_cache_seconds(const StepCosts& costs, double b, double sum, double sum_of_squares, double r) {
  return StepSeconds(costs).of(b, sum, sum_of_squares, r);
}

PartialCacheChoice solve_partial_cache(const StepCosts& costs, const PartialCacheProblem& problem) {
  const StepSeconds step(costs);
  return scan(
      problem,
      [&](double sum) {
        return smallest_ratio(costs.kv_bytes_per_token, costs.workspace_bytes_per_token, sum, problem.memory_bytes);
      },
      [&](double b, double sum, double sum_of_squares, double r) { return step.of(b, sum, sum_of_squares, r); });
}

double partial_cache_seconds(const MeasuredStep& step, double b, double sum, double sum_of_squares, double r) {
  BatchFeatures features{.num_decodes = b, .decode_context = sum + step.shared_tokens, .max_context = step.max_context};
  if (r > 0) {
    features.num_chunks = std::max(1.0, r * b);  // as few as hold them
    features.chunk_tokens = r * sum * step.recomputed_share;
    features.chunk_pairs = features.chunk_squares = r * r * sum_of_squares * step.recomputed_share;
  }
  return step.latency.predict(features);
}

PartialCacheChoice solve_partial_cache(const MeasuredStep& step, const PartialCacheProblem& problem) {
  return scan(
      problem, [&](double sum) { return smallest_ratio(1.0, 0.0, sum, problem.memory_bytes); },
      [&](double b, double sum, double sum_of_squares, double r) {
        return partial_cache_seconds(step, b, sum, sum_of_squares, r);
      });
}

}  // namespace hocket
