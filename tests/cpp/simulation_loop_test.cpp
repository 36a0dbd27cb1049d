#include "simulation/simulation_loop.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "offline/plan_features.h"
#include "testing.h"

namespace hocket {
namespace {

constexpr double kNoTarget = std::numeric_limits<double>::infinity();

// Requests of one run each, and the arrays that the loop looks at.
struct Columns {
  std::vector<double> arrival_s, targets;
  std::vector<int32_t> follows, num_outputs, ends;
  std::vector<uint8_t> classes;
  std::vector<int64_t> priorities, offsets = {0};
  std::vector<uint64_t> streams;

  void add(double arrival, int32_t num_prompt, int32_t num_output, uint64_t stream, int32_t leader = kNone) {
    arrival_s.push_back(arrival);
    targets.push_back(kNoTarget);
    follows.push_back(leader);
    num_outputs.push_back(num_output);
    ends.push_back(num_prompt);
    classes.push_back(0);
    priorities.push_back(0);
    streams.push_back(stream);
    offsets.push_back(static_cast<int64_t>(streams.size()));
  }

  SimulatedRequests requests() const {
    return {arrival_s, follows,    num_outputs,
            classes,   priorities, targets,
            targets,   targets,    {offsets, streams, ends, streams}};
  }
};

SchedulerConfig small_config(int32_t num_blocks) {
  SchedulerConfig config;
  config.num_layers = 4;
  config.block_size = 4;
  config.max_model_len = 64;
  config.num_units = 2 * num_blocks;
  return config;
}

// 10 ms per step and 1 ms per token.
LatencyModel simple_latency() {
  LatencyCoefficients coefficients;
  coefficients.step_base = 0.010;
  coefficients.prefill_token = 0.001;
  coefficients.decode_seq = 0.001;
  coefficients.overlap = 0.0;
  return LatencyModel(LatencyForm::kCorrected, coefficients);
}

Estimates simple_estimates() {
  Estimates estimates;
  estimates.latency = simple_latency();
  return estimates;
}

std::vector<int64_t> microseconds(const std::vector<double>& seconds) {
  std::vector<int64_t> rounded;
  for (const double value : seconds) rounded.push_back(std::llround(1e6 * value));
  return rounded;
}

TEST(simulation_loop, adds_up_steps_and_sees_arrivals_after_them) {
  Columns columns;
  columns.add(0.0, 4, 3, 1);
  columns.add(0.005, 2, 2, 2);
  SimulationLoop loop(small_config(32), simple_estimates(), columns.requests(), {.keep_token_times = true});
  CHECK(!loop.run(100));
  CHECK_EQ(loop.token_times().request, (std::vector<uint32_t>{0, 0, 1, 0, 1}));
  CHECK_EQ(microseconds(loop.token_times().time_s), (std::vector<int64_t>{14000, 27000, 27000, 39000, 39000}));
  CHECK_EQ(loop.num_ended(), int64_t{2});
}

TEST(simulation_loop, a_follow_up_waits_for_the_answer_and_finds_it_cached) {
  Columns columns;
  columns.add(0.0, 6, 7, 1);
  columns.add(2.0, 20, 1, 1, 0);
  SimulationLoop loop(small_config(32), simple_estimates(), columns.requests(), {});
  CHECK(!loop.run(100));
  CHECK_EQ(microseconds(loop.records().arrival_s), (std::vector<int64_t>{0, 2082000}));
  CHECK_EQ(loop.records().num_cached_tokens, (std::vector<int32_t>{0, 12}));
}

// The device has room for one conversation, the host for both. A block of 4 tokens takes 4 ms each way.
TEST(simulation_loop, what_the_device_dropped_comes_back_from_the_host) {
  for (const bool overlap : {false, true}) {
    SchedulerConfig config = small_config(12);
    config.layers_per_unit = 2;
    config.num_units = 12 * config.units_per_block();
    config.num_host_blocks = 40;
    config.restore = "always";
    config.overlap_restores = overlap;
    Estimates estimates = simple_estimates();
    estimates.unit_bytes = 500;
    estimates.host_bytes_per_second = 500'000;
    Columns columns;
    columns.add(0.0, 33, 1, 1);
    columns.add(1.0, 47, 1, 2);
    columns.add(2.0, 35, 1, 1, 0);
    SimulationLoop loop(config, estimates, columns.requests(), {});
    CHECK(!loop.run(100));
    loop.scheduler().check_invariants();
    CHECK_EQ(loop.records().num_cached_tokens[2], 32);
    const double ttft = loop.records().first_token_s[2] - loop.records().arrival_s[2];
    // Eight blocks, then 3 tokens; or the step begins with the copies and computes its second half when all are there.
    const double copies = 8 * 0.004, compute = 0.013;
    CHECK(std::abs(ttft - (overlap ? copies + compute / 2 : copies + compute)) < 1e-9);
    CHECK_EQ(loop.totals().num_steps, int64_t{3});
  }
}

TEST(simulation_loop, ends_every_request_once_when_memory_is_short) {
  Columns columns;
  for (int32_t i = 0; i < 40; ++i) columns.add(0.01 * (i % 7), 3 + i % 11, 1 + i % 17, i / 2);
  columns.add(0.0, 64, 1, 99);
  SimulationLoop loop(small_config(16), simple_estimates(), columns.requests(), {true, 0.05});
  while (loop.run(1)) loop.scheduler().check_invariants();
  CHECK_EQ(loop.num_ended(), int64_t{41});
  std::vector<int32_t> counts(41, 0);
  for (const uint32_t request : loop.token_times().request) ++counts[request];
  for (int32_t i = 0; i < 40; ++i) {
    CHECK(loop.records().outcome[i] == SimulatedOutcome::kFinished);
    CHECK_EQ(counts[i], 1 + i % 17);
  }
  CHECK(loop.records().outcome[40] == SimulatedOutcome::kTooLong);
  CHECK_EQ(counts[40], 0);
  CHECK(!loop.samples().time_s.empty());
}

TEST(simulation_loop, refuses_columns_that_make_no_sense) {
  Columns circle;
  circle.add(0.0, 4, 1, 1, 1);
  circle.add(0.0, 4, 1, 2, 0);
  CHECK_THROWS(SimulationLoop(small_config(32), simple_estimates(), circle.requests(), {}), std::invalid_argument);
  Columns empty_prompt;
  empty_prompt.add(0.0, 0, 1, 1);
  CHECK_THROWS(SimulationLoop(small_config(32), simple_estimates(), empty_prompt.requests(), {}),
               std::invalid_argument);
}

TEST(simulation_loop, counts_a_single_query_token_as_a_decode_and_others_as_a_chunk) {
  BatchPlan plan;
  plan.rows = {0, 1, 2};
  plan.query_start = {0, 1, 2, 7};
  plan.seq_lens = {10, 30, 12};
  const BatchFeatures features = plan_features(plan);
  CHECK_EQ(features.num_decodes, 2.0);
  CHECK_EQ(features.decode_context, 40.0);
  CHECK_EQ(features.max_context, 30.0);
  CHECK_EQ(features.num_chunks, 1.0);
  CHECK_EQ(features.chunk_tokens, 5.0);
  CHECK_EQ(features.chunk_pairs, 12.0 * 12 - 7 * 7);
  CHECK_EQ(features.chunk_squares, 25.0);
}

TEST(simulation_loop, a_histogram_bin_holds_gaps_within_a_percent) {
  ItlHistogram histogram;
  histogram.add(0.0);
  histogram.add(ItlHistogram::kSmallest);
  histogram.add(0.0100);
  histogram.add(0.0100);
  histogram.add(0.0102);
  histogram.add(1e9);
  const auto& counts = histogram.counts();
  CHECK_EQ(counts.front(), int64_t{1});
  CHECK_EQ(counts[1], int64_t{1});
  CHECK_EQ(counts.back(), int64_t{1});
  int pairs = 0, total = 0;
  for (const int64_t count : counts) {
    pairs += count == 2;
    total += static_cast<int>(count);
  }
  CHECK_EQ(pairs, 1);
  CHECK_EQ(total, 6);
}

}  // namespace
}  // namespace hocket
