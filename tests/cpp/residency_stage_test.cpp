// The b/r solver in the united policy: how many come in beside whom, whether tokens are recomputed for one more, and
// what is said where they are not.

#include "stages/residency_stage.h"

#include <numeric>
#include <random>

#include "policy_world.h"
#include "testing.h"
#include "timed_engine.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::Names;
using testing::PolicyWorld;
using testing::timed_config;
using testing::TimedEngine;
using testing::world_config;

constexpr double kStep = 0.010;  // seconds, of a step without tokens

// Blocks of 16 tokens and 2 units.
SchedulerConfig partial_config(int32_t num_blocks) {
  SchedulerConfig config = world_config("hocket");
  config.num_units = 2 * num_blocks;
  config.enable_partial_caching = true;
  return config;
}

// Beside "a", which decodes in 3 blocks, a prompt of 8; 2 blocks stay free.
std::unique_ptr<PolicyWorld> crowded(int32_t num_blocks, const Estimates& estimates, int32_t first_token = 500) {
  auto world = std::make_unique<PolicyWorld>(partial_config(num_blocks));
  world->estimates = estimates;
  world->runs("a", 1, {.num_prompt = 40});
  world->waits("b", {.num_prompt = 112, .first_token = first_token});
  return world;
}

RatioReason reason(int32_t num_blocks, const Estimates& estimates, int32_t first_token = 500) {
  return crowded(num_blocks, estimates, first_token)->compose().residency.reason;
}

TEST(residency_stage, what_is_recomputed_is_said) {
  const Composition composition = crowded(9, linear_seconds(kStep, 1e-6))->compose();
  CHECK(composition.residency.reason == RatioReason::kRecomputes);
  CHECK_EQ(composition.residency.uncached_ratio, 4.0 / 11);  // 4 blocks of 3 + 8
  CHECK_EQ(composition.residency.max_running, Residency::kEverybody);
}

TEST(residency_stage, why_nothing_is_recomputed_is_said) {
  const Estimates cheap = linear_seconds(kStep, 1e-6);
  CHECK(reason(100, cheap) == RatioReason::kMemorySuffices);
  CHECK(reason(9, Estimates()) == RatioReason::kUnknownTimes);
  CHECK(reason(9, linear_seconds(kStep, 90e-6)) == RatioReason::kCostsMore);  // by who would come in
  CHECK(reason(9, linear_seconds(kStep, 1e-3)) == RatioReason::kCostsMore);   // by the solver
  CHECK(reason(3, cheap) == RatioReason::kTooFewBlocks);
  CHECK(reason(8, cheap, /*first_token=*/1) == RatioReason::kNobodyMayLack);  // it shares 2 blocks with "a"
  SchedulerConfig config = partial_config(9);
  config.enable_partial_caching = false;
  CHECK(PolicyWorld(config).compose().residency.reason == RatioReason::kNotAllowed);
}

TEST(residency_stage, a_target_that_recomputing_would_miss_is_the_reason) {
  PolicyWorld world(partial_config(9));
  world.estimates = linear_seconds(kStep, 50e-6);
  world.runs("a", 1, {.num_prompt = 40, .ttft_target = 1.2 * kStep});
  world.waits("b", {.num_prompt = 112, .first_token = 500});
  CHECK(world.compose().residency.reason == RatioReason::kTargets);
}

// Each decode takes a millisecond, beside ten of the step: with a target of 13 and a margin of 1.05 two may run.
std::unique_ptr<PolicyWorld> with_targets(double itl_target, bool is_partial = true) {
  SchedulerConfig config = partial_config(500);
  config.enable_partial_caching = is_partial;
  auto world = std::make_unique<PolicyWorld>(config);
  world->estimates = linear_seconds(kStep, 1e-3);
  world->runs("a", 1, {.itl_target = itl_target});
  for (const char* name : {"b", "c", "d"}) world->waits(name, {.itl_target = itl_target});
  return world;
}

int64_t num_admitted(const Composition& composition) {
  return std::ranges::count_if(composition.grants, [](const Grant& grant) { return grant.is_admission; });
}

TEST(residency_stage, nobody_comes_in_with_whom_a_step_of_decodes_would_miss_a_target) {
  const Composition composition = with_targets(0.013)->compose();
  CHECK_EQ(composition.residency.max_running, 2);
  CHECK(num_admitted(composition) <= 1);
  CHECK_EQ(with_targets(1.0)->compose().residency.max_running, Residency::kEverybody);
}

TEST(residency_stage, who_runs_is_not_given_up_for_it) {
  const Composition composition = with_targets(0.001)->compose();
  CHECK_EQ(composition.residency.max_running, 1);
  CHECK(composition.preemptions.empty());
}

TEST(residency_stage, without_partial_caching_there_is_no_such_limit) {
  CHECK_EQ(with_targets(0.013, /*is_partial=*/false)->compose().residency.max_running, Residency::kEverybody);
}

TEST(residency_stage, who_starves_comes_in_all_the_same) {
  const auto made = with_targets(0.013);
  PolicyWorld& world = *made;
  world.now = 2 * world.config.max_wait_ms / 1000;
  for (const Slot slot : world.running) world.table.pace[slot].last_token_time = world.now;
  const Composition composition = world.compose();
  CHECK(num_admitted(composition) >= 1);
}

// No b, and no r on a fine grid, yields more.
TEST(residency_stage, the_solver_by_measured_times_is_never_worse_than_a_grid) {
  std::mt19937 random(7);
  const auto draw = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  int32_t num_recomputing = 0;
  for (int i = 0; i < 300; ++i) {
    LatencyCoefficients k{.step_base = draw(0, 0.02), .prefill_pair = draw(0, 1e-8), .prefill_token = draw(1e-7, 2e-5)};
    k.decode_seq = draw(1e-6, 1e-4);
    k.decode_context = draw(0, 1e-6);
    k.overlap = draw(0, 1);
    const LatencyModel latency(LatencyForm::kCorrected, k);
    std::vector<int32_t> lengths(1 + random() % 30);
    double total = 0.0;
    for (int32_t& length : lengths) total += length = static_cast<int32_t>(draw(16, 2000));
    const MeasuredStep step{.latency = latency, .shared_tokens = draw(0, 500), .max_context = 2000};
    const auto min_batch = static_cast<int32_t>(1 + random() % lengths.size());
    const PartialCacheProblem problem{.lengths = lengths,
                                      .memory_bytes = draw(0.2, 1.2) * total,
                                      .max_seconds = draw(0.01, 0.2),
                                      .min_batch_size = min_batch};
    const PartialCacheChoice choice = solve_partial_cache(step, problem);
    double best = 0.0;
    double sum = 0.0;
    double squares = 0.0;
    for (size_t b = 1; b <= lengths.size(); ++b) {
      sum += lengths[b - 1];
      squares += static_cast<double>(lengths[b - 1]) * lengths[b - 1];
      if (b < static_cast<size_t>(min_batch)) continue;
      for (int r = 0; r <= 200; ++r) {
        const double seconds = partial_cache_seconds(step, static_cast<double>(b), sum, squares, r / 200.0);
        if ((1 - r / 200.0) * sum > problem.memory_bytes || seconds > problem.max_seconds) continue;
        best = std::max(best, static_cast<double>(b) / seconds);
      }
    }
    CHECK(choice.batch_size == 0 || choice.batch_size >= min_batch);
    CHECK(choice.batch_size == 0 ? best == 0.0 : choice.batch_size / choice.seconds >= best * (1 - 1e-9));
    num_recomputing += choice.uncached_ratio > 0;
  }
  CHECK(num_recomputing > 30);
}

// Beside prefix caching, with short memory: the same answers, and every step is counted once.
TEST(residency_stage, answers_are_the_same_and_every_step_has_its_reason) {
  const auto run = [](int32_t num_blocks) {
    SchedulerConfig config = timed_config("hocket", num_blocks);
    config.enable_partial_caching = true;
    TimedEngine engine(config, linear_seconds(0.01, 1e-6));
    for (int32_t i = 0; i < 30; ++i) engine.add({.num_prompt = 20 + i * 7 % 50, .max_tokens = 5 + i * 5 % 40});
    engine.run();
    std::vector<testing::Tokens> outputs;
    for (const auto& [id, request] : engine.engine.requests) outputs.push_back(request.output);
    const SchedulerStats stats = engine.engine.scheduler.stats();
    const auto& steps = stats.counters.num_ratio_steps;
    CHECK_EQ(std::accumulate(steps.begin(), steps.end(), int64_t{0}), stats.counters.num_steps);
    return std::make_pair(outputs, steps[static_cast<size_t>(RatioReason::kRecomputes)]);
  };
  const auto [ample, none] = run(2000);
  const auto [tight, some] = run(60);
  CHECK_EQ(none, 0);
  CHECK(some > 0);
  CHECK(ample == tight);
}

}  // namespace
}  // namespace hocket
