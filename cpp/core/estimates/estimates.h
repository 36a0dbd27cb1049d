// What the scheduler believes about the machine: how long a batch takes, and what moving or recomputing costs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "estimates/latency_model.h"
#include "estimates/step_costs.h"
#include "estimates/step_margin.h"

namespace hocket {

struct Estimates {
  static constexpr int32_t kUsualDecodes = 32;
  static constexpr double kUsualContext = 1024;      // tokens
  static constexpr double kLeastItlSeconds = 0.008;  // smaller pieces of prompts cost more than they bring

  LatencyModel latency;              // without coefficients: nothing is known, and no step is cut for time
  double latency_deviation = 0.3;    // how far off a coefficient may be, relative; larger: refinement follows faster
  StepMargin margin;                 // of steps that have a deadline
  StepCosts costs;                   // for the b/r solver; flops_per_second 0: unknown
  double host_bytes_per_second = 0;  // each way; 0: unknown
  double disk_bytes_per_second = 0;  // reading; 0: unknown
  double unit_bytes = 0;

  bool knows_latency() const { return latency.predict({.num_decodes = 1, .decode_context = 1, .max_context = 1}) > 0; }
  // The time between tokens that this machine can keep: twice that of a step in which as many requests decode as is
  // usual, 1024 tokens each, and no less than kLeastItlSeconds. Infinite while nothing is known of step times.
  double itl_seconds(int32_t max_num_seqs) const {
    if (!knows_latency()) return std::numeric_limits<double>::infinity();
    const double num_decodes = std::min(kUsualDecodes, max_num_seqs);
    const BatchFeatures usual{
        .num_decodes = num_decodes, .decode_context = num_decodes * kUsualContext, .max_context = kUsualContext};
    return std::max(kLeastItlSeconds, 2 * latency.predict(usual));
  }
  // That a step may be predicted to take beside decodes that take so long: `stretch` times that, since readers feel
  // less where they are fewer or shorter, and at most what keeps `leniency` times itl_seconds() in 99 % of steps.
  double step_seconds(int32_t max_num_seqs, double decode_seconds, double stretch, double leniency = 1.0) const {
    return std::min(leniency * itl_seconds(max_num_seqs) / margin.of_readers(),
                    std::max(kLeastItlSeconds, stretch * decode_seconds));
  }
  // A time to the first token that this machine can keep: eight times that of computing 1024 tokens, and a second.
  double ttft_seconds() const { return std::max(1.0, 8 * prefill_seconds(0, kUsualContext)); }
  double transfer_seconds(int64_t num_units) const {
    return host_bytes_per_second > 0 ? static_cast<double>(num_units) * unit_bytes / host_bytes_per_second : 0.0;
  }
  double disk_seconds(int64_t num_units) const {
    return disk_bytes_per_second > 0 ? static_cast<double>(num_units) * unit_bytes / disk_bytes_per_second : 0.0;
  }
  // A step whose layer groups wait for their copies, each for its own, where the copies begin with the step and come in
  // the order of the groups: the slower of the two, and one group of the other before or after it.
  static double overlapped_seconds(double compute, double copies, int32_t num_groups) {
    return std::max(compute, copies) + std::min(compute, copies) / num_groups;
  }
  // To compute n tokens after c others, as part of a step; 0: unknown.
  double prefill_seconds(double c, double n) const {
    const LatencyCoefficients& k = latency.coefficients();
    return k.prefill_token * n + k.prefill_pair * ((c + n) * (c + n) - c * c);
  }
};

}  // namespace hocket
