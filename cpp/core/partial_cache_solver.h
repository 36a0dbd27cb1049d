// How many requests to decode, and which share of their tokens to recompute instead of caching (eLLM section 4.2).
//
//   maximise  b / T(b, r)   over 1 <= b <= B, 0 <= r <= 1, the first b requests in FCFS order
//   subject to  T(b, r) <= max_seconds
//               sum of s_i ((1 - r) kv_bytes + r workspace_bytes) <= memory_bytes
//
// The paper solves this with SLSQP. With S1 = sum of s_i and S2 = sum of s_i^2, T is O(1) and never decreases in r, and
// memory is linear in r: for a given b the best r is the smallest that memory allows. b is then scanned; it ends where
// no larger b can fit or be better, because T and the smallest r both grow with b. Exact, O(B). Of equally good
// answers the one with the larger batch: with equal lengths the paper's T makes every batch size equal.
//
// T is the paper's count of FLOPs over a rate, or a roofline: a decode step is bound by memory bandwidth, so
// recomputing is free as long as compute would idle, and costs afterwards. Per part of the step the slower of the two
// counts:
//
//   kFlops     ( (b + r S1) token + (S1 + b + r^2 S2) pair + (1 + r) S1 logit ) / flops_per_second
//   kRoofline  max( weight bytes, (b + r S1) token flops ) + max( (1 + r) S1 kv bytes, (S1 + b + r^2 S2 / 2) pair flops
//   )
//              + max( head bytes, b logit flops )          every pair over bytes_per_second and flops_per_second
//
// The roofline leaves out what the paper counts too much: logits of recomputed and of cached tokens, and the upper half
// of the causal attention among recomputed tokens.
//
// Pure functions; no allocation.
#pragma once

#include <cstdint>
#include <span>

namespace hocket {

enum class StepCostForm : int32_t { kFlops = 0, kRoofline = 1 };

// Of one model on one device. All > 0, but workspace_bytes_per_token >= 0.
struct StepCosts {
  StepCostForm form = StepCostForm::kRoofline;
  double flops_per_token = 0;            // matrix work of all layers for one token; the paper: 24 h^2 L
  double flops_per_pair = 0;             // attention of all layers, one query to one key; the paper: 4 h L
  double flops_per_logit = 0;            // output layer for one token; the paper: 2 h V
  double flops_per_second = 0;           // reached, not peak
  double weight_bytes = 0;               // of all layers, read once per step
  double head_bytes = 0;                 // of the output layer
  double kv_bytes_per_token = 0;         // all layers
  double workspace_bytes_per_token = 0;  // of recomputed tokens while their layers are in flight; the paper: 40 h
  double bytes_per_second = 0;           // reached, not peak
};

struct PartialCacheProblem {
  std::span<const int32_t> lengths;  // s_i >= 1, in FCFS order
  double memory_bytes = 0;           // for cache and workspace
  double max_seconds = 0;            // step time target minus the longest wait
};

struct PartialCacheChoice {
  int32_t batch_size = 0;     // 0: not even the first request fits; then the others are 0
  double uncached_ratio = 0;  // r, 0..1
  double seconds = 0;         // T(b, r)
};

// T for b requests with the given sums of lengths and of squared lengths.
double partial_cache_seconds(const StepCosts& costs, double b, double sum, double sum_of_squares,
                             double uncached_ratio);

PartialCacheChoice solve_partial_cache(const StepCosts& costs, const PartialCacheProblem& problem);

}  // namespace hocket
