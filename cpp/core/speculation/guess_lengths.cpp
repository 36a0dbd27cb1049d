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

// By a guess that is sure to be right, and attends to nothing.
bool GuessLengths::may_pay(const LatencyModel& latency, const BatchFeatures& batch, int32_t num_tokens, double margin) {
  const bool has_prompts = batch.num_chunks > 0;
  BatchFeatures decodes = has_prompts ? without_chunks(batch) : batch;
  const double seconds = latency.predict(decodes);
  decodes.add_decode(0);
  const double least_cost = has_prompts ? latency.coefficients().prefill_token : 0.0;
  return seconds > margin * num_tokens * std::max(latency.predict(decodes) - seconds, least_cost);
}

int32_t GuessLengths::choose(const LatencyModel& latency, BatchFeatures batch, int32_t num_tokens,
                             const GuessLimits& limits, std::span<GuessCandidate> candidates) {
  const bool has_prompts = batch.num_chunks > 0;
  const double least_cost = has_prompts ? latency.coefficients().prefill_token : 0.0;
  BatchFeatures decodes = has_prompts ? without_chunks(batch) : batch;
  double seconds = latency.predict(decodes);
  double expected = num_tokens;
  order_.clear();
  for (int32_t i = 0; i < std::ssize(candidates); ++i) {
    if (candidates[i].most > 0) order_.push_back(i);
  }
  const auto is_less = [&](int32_t a, int32_t b) {
    const float of_a = candidates[a].next_chance();
    const float of_b = candidates[b].next_chance();
    return of_a != of_b ? of_a < of_b : a > b;
  };
  std::ranges::make_heap(order_, is_less);
  int32_t num_guesses = 0;
  while (!order_.empty() && num_guesses < limits.max_guesses) {
    GuessCandidate& best = candidates[order_.front()];
    const float gain = best.next_chance();
    const double context = best.context + best.num_guesses + 1;
    decodes.add_decode(context);
    const double longer = latency.predict(decodes);
    const double cost = std::max(longer - seconds, least_cost);
    if (gain * seconds <= limits.margin * expected * cost) break;
    if (has_prompts) batch.add_decode(context);
    if ((has_prompts ? latency.predict(batch) : longer) > limits.max_seconds) break;
    seconds += cost;
    expected += gain;
    best.chance = gain;
    ++num_guesses;
    std::ranges::pop_heap(order_, is_less);
    if (++best.num_guesses < best.most) {
      std::ranges::push_heap(order_, is_less);
    } else {
      order_.pop_back();
    }
  }
  return num_guesses;
}

}  // namespace hocket
