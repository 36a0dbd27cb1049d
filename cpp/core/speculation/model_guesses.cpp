#include "speculation/model_guesses.h"

#include <algorithm>
#include <bit>

namespace hocket {

void ModelTimes::observe(int32_t num_requests, int32_t num_tokens, double seconds) {
  if (num_requests < 1 || num_tokens < 1 || !(seconds > 0)) return;
  Mean& of = by_size_[std::min(kNumSizes, static_cast<int>(std::bit_width(static_cast<uint32_t>(num_requests)))) - 1];
  of.num = std::min(of.num + 1, kMemory);
  of.seconds += (seconds / num_tokens - of.seconds) / of.num;
}

// Of the nearest size that was measured; of two, the larger.
double ModelTimes::of_token(int32_t num_requests) const {
  const int size =
      std::clamp(static_cast<int>(std::bit_width(static_cast<uint32_t>(std::max(num_requests, 1)))), 1, kNumSizes) - 1;
  for (int off = 0; off < kNumSizes; ++off) {
    for (const int i : {size + off, size - off}) {
      if (i >= 0 && i < kNumSizes && by_size_[i].num > 0) return by_size_[i].seconds;
    }
  }
  return 0.0;
}

int32_t model_depth(const ModelTimes& model, const StepTimes& times, BatchFeatures batch, int32_t num_tokens,
                    const GuessLimits& limits, std::span<GuessCandidate> candidates) {
  const double per_token = model.of_token(static_cast<int32_t>(candidates.size()));
  const double plain_seconds = times.of_decodes(batch, false);
  if (!(per_token > 0) || !(plain_seconds > 0)) return 0;
  double tokens = num_tokens;
  double best_rate = tokens / plain_seconds;
  int32_t best = 0;
  for (int32_t depth = 1; depth <= limits.max_guesses; ++depth) {
    bool any = false;
    for (GuessCandidate& candidate : candidates) {
      if (depth > candidate.most) continue;
      candidate.num_guesses = depth - 1;
      candidate.chance = candidate.next_chance();
      tokens += candidate.chance;
      batch.add_decode(candidate.context + depth);
      any = true;
    }
    const double seconds = times.of_decodes(batch, true) + depth * per_token;
    if (!any || seconds > limits.max_seconds) break;
    const double gained = tokens - num_tokens, cost = seconds - plain_seconds;
    if (tokens / seconds > best_rate && gained * plain_seconds > limits.margin * num_tokens * cost) {
      best_rate = tokens / seconds;
      best = depth;
    }
  }
  return best;
}

}  // namespace hocket
