#include "thread_split.h"

#include <algorithm>
#include <cmath>

#include "check.h"

namespace hocket {

double recompute_volume(const FusedBatch& b, double h, double vocabulary, int32_t recomputed_layers) {
  const double r = b.uncached_ratio;
  const double per_layer = 24.0 * h * h * b.sum_lengths * r + 4.0 * h * b.sum_squares * r * r;
  return recomputed_layers * per_layer + 2.0 * h * vocabulary * b.sum_lengths * r;
}

double decode_volume(const FusedBatch& b, double h, double vocabulary, int32_t layers) {
  const double per_layer = 24.0 * h * h * b.num_requests + 4.0 * h * (b.sum_lengths + b.num_requests);
  return layers * per_layer + 2.0 * h * vocabulary * b.sum_lengths;
}

int32_t split_threads(double recompute_volume, double decode_volume, int32_t total_threads) {
  HOCKET_CHECK(total_threads % kWarpSize == 0 && total_threads >= 2 * kWarpSize, "two warps or more");
  const double volume = recompute_volume + decode_volume;
  if (!(volume > 0.0)) return total_threads / kWarpSize / 2 * kWarpSize;
  // Both times are monotonic in the split and cross at proportionality, so the best whole number of warps is next to
  // it.
  const int32_t num_warps = total_threads / kWarpSize;
  const auto below = static_cast<int32_t>(std::floor(num_warps * (recompute_volume / volume)));
  const int32_t low = std::clamp(below, 1, num_warps - 1);
  const int32_t high = std::clamp(below + 1, 1, num_warps - 1);
  const auto seconds = [&](int32_t warps) {
    return std::max(recompute_volume / warps, decode_volume / (num_warps - warps));
  };
  return kWarpSize * (seconds(high) < seconds(low) ? high : low);
}

}  // namespace hocket
