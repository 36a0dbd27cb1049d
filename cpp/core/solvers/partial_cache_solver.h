// How many requests to decode, and which share of their tokens to recompute instead of caching (eLLM section 4.2).
//
//   maximise  b / T(b, r)   over 1 <= b <= B, 0 <= r <= max_ratio, the first b requests in FCFS order
//   subject to  T(b, r) <= max_seconds
//               T(b, r) + WT_i <= SLO_i for each of them: the step ends before their tokens are due
//               sum of s_i ((1 - r) kv_bytes + r workspace_bytes) <= memory_bytes
//
// The paper solves this with SLSQP. With S1 = sum of s_i and S2 = sum of s_i^2, T is O(1) and never decreases in r, and
// memory is linear in r: for a given b the best r is the smallest that memory allows. b is then scanned; it ends where
// no larger b can fit or be better, because T, the smallest r and what is due only tighten with b. Exact, O(B). Of
// equally good answers the one with the larger batch: with equal lengths the paper's T makes every batch size equal.
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
// Or T is what was measured of the machine (latency_model.h): a step that decodes all b and has their uncached tokens
// as chunks. Memory is then in tokens, and uncached ones take none: their workspace lies outside the pool.
//
// Pure functions; no allocation.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "estimates/latency_model.h"
#include "estimates/step_costs.h"

namespace hocket {

struct PartialCacheProblem {
  std::span<const int32_t> lengths;            // s_i >= 1, in FCFS order
  double memory_bytes = 0;                     // for cache and workspace
  std::span<const double> slack_seconds = {};  // SLO_i - WT_i; empty: nothing is due
  double max_seconds = std::numeric_limits<double>::infinity();
  double max_ratio = 1.0;      // 0: every token is cached
  int32_t min_batch_size = 1;  // who has a place already: fewer are no answer
};

// What a step of the problem's requests takes by a latency model, beside what the lengths say.
struct MeasuredStep {
  const LatencyModel& latency;
  double shared_tokens = 0.0;     // that they attend to and share with others: never recomputed, and in no length
  double max_context = 0.0;       // tokens, of any of them
  double recomputed_share = 1.0;  // 0..1, of an uncached token's layers: the others are loaded meanwhile
};

struct PartialCacheChoice {
  int32_t batch_size = 0;     // 0: not even the first request fits, or is in time; then the others are 0
  double uncached_ratio = 0;  // r, 0..1
  double seconds = 0;         // T(b, r)
};

// T for b requests with the given sums of lengths and of squared lengths.
double partial_cache_seconds(const StepCosts& costs, double b, double sum, double sum_of_squares,
                             double uncached_ratio);

PartialCacheChoice solve_partial_cache(const StepCosts& costs, const PartialCacheProblem& problem);

// The same by measured times. memory_bytes is in tokens.
double partial_cache_seconds(const MeasuredStep& step, double b, double sum, double sum_of_squares,
                             double uncached_ratio);
PartialCacheChoice solve_partial_cache(const MeasuredStep& step, const PartialCacheProblem& problem);

}  // namespace hocket
