// How many of a fused kernel's threads recompute and how many decode (eLLM section 4.3.2).
//
// The two parts run side by side in every block and should end together, so threads are split in proportion to the
// volumes, in whole warps, at least one each.
//
// Pure functions.
#pragma once

#include <cstdint>

namespace hocket {

inline constexpr int32_t kWarpSize = 32;

// Sums over the batch: b requests of s_i tokens, of which the first r s_i are recomputed.
struct FusedBatch {
  double num_requests;    // b
  double sum_lengths;     // sum of s_i
  double sum_squares;     // sum of s_i^2
  double uncached_ratio;  // r
};

// The paper's V_K1 and V_K2, FLOPs (eq. 8 and 9), with l1 swapped and l2 recomputed layers, hidden size h, vocabulary
// V.
double recompute_volume(const FusedBatch& batch, double hidden_size, double vocabulary, int32_t recomputed_layers);
double decode_volume(const FusedBatch& batch, double hidden_size, double vocabulary, int32_t layers);

// Threads for recomputation; decoding gets the rest. Of the multiples of 32 the one at which the slower part ends
// first; of two equal ones the one that leaves more to decoding. REQUIRES: total_threads a multiple of 32, at least 64;
// volumes >= 0.
int32_t split_threads(double recompute_volume, double decode_volume, int32_t total_threads);

}  // namespace hocket
