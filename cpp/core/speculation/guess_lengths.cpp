#include "speculation/guess_lengths.h"

#include <algorithm>

namespace hocket {
namespace {

BatchFeatures without_chunks(const BatchFeatures& batch) {
  BatchFeatures decodes;
  decodes.num_decodes = batch.num_decodes;
  decodes.decode_context = batch.decode_context;
  decodes.max_context = batch.max_context;
  return decodes;
}

}  // namespace

// By guesses that are sure to be right, and attend to nothing.
bool GuessLengths::may_pay(const StepTimes& times, const BatchFeatures& batch, int32_t num_tokens, double margin) {
  const bool has_prompts = batch.num_chunks > 0;
  const double least_cost = has_prompts ? times.latency.coefficients().prefill_token : 0.0;
  BatchFeatures decodes = has_prompts ? without_chunks(batch) : batch;
  const double seconds = times.of_decodes(decodes, false);
  for (int32_t n = 1; n <= kBeyond; ++n) {
    decodes.add_decode(0);
    const double cost = std::max(times.of_decodes(decodes, true) - seconds, n * least_cost);
    if (n * seconds > margin * num_tokens * cost) return true;
  }
  return false;
}

int32_t GuessLengths::choose(const StepTimes& times, BatchFeatures batch, int32_t num_tokens, const GuessLimits& limits,
                             std::span<GuessCandidate> candidates) {
  const bool has_prompts = batch.num_chunks > 0;
  const double least_cost = has_prompts ? times.latency.coefficients().prefill_token : 0.0;
  BatchFeatures decodes = has_prompts ? without_chunks(batch) : batch;
  struct Outcome {
    double tokens;
    double seconds;
  };
  Outcome best{static_cast<double>(num_tokens), times.of_decodes(decodes, false)}, here = best;
  order_.clear();
  granted_.clear();
  for (int32_t i = 0; i < std::ssize(candidates); ++i) {
    if (candidates[i].most > 0) order_.push_back(i);
  }
  const auto is_less = [&](int32_t a, int32_t b) {
    const float of_a = candidates[a].next_chance();
    const float of_b = candidates[b].next_chance();
    return of_a != of_b ? of_a < of_b : a > b;
  };
  std::ranges::make_heap(order_, is_less);
  size_t num_kept = 0;
  const auto most = static_cast<size_t>(std::max(0, limits.max_guesses));
  while (!order_.empty() && granted_.size() < std::min(most, num_kept + kBeyond)) {
    GuessCandidate& next = candidates[order_.front()];
    const float gain = next.next_chance();
    const double context = next.context + next.num_guesses + 1;
    decodes.add_decode(context);
    const double longer = std::max(times.of_decodes(decodes, true), here.seconds + least_cost);
    if (has_prompts) batch.add_decode(context);
    if ((has_prompts ? times.latency.predict(batch) : longer) > limits.max_seconds) break;
    here = {here.tokens + gain, longer};
    granted_.push_back(order_.front());
    const double gained = here.tokens - best.tokens, cost = here.seconds - best.seconds;
    if (gained * best.seconds > limits.margin * best.tokens * cost) {
      best = here;
      num_kept = granted_.size();
    }
    next.chance = gain;
    std::ranges::pop_heap(order_, is_less);
    if (++next.num_guesses < next.most) {
      std::ranges::push_heap(order_, is_less);
    } else {
      order_.pop_back();
    }
  }
  for (size_t i = num_kept; i < granted_.size(); ++i) --candidates[granted_[i]].num_guesses;
  return static_cast<int32_t>(num_kept);
}

}  // namespace hocket
