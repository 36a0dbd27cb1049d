// Tokens that are recomputed in every step instead of being cached (eLLM): only where memory binds, and to the same
// end. FakeEngine compares every vector and every answer with those of a run without any of it.

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

// A device whose weights take so long to read that computing some tokens more costs nothing.
Estimates idle_compute(const SchedulerConfig& config) {
  Estimates estimates = linear_seconds(0.01, 0.0001);
  estimates.costs = {.form = StepCostForm::kRoofline,
                     .flops_per_token = 1.0,
                     .flops_per_pair = 1e-6,
                     .flops_per_logit = 1e-6,
                     .flops_per_second = 1e6,
                     .weight_bytes = 1e6,
                     .head_bytes = 1.0,
                     .kv_bytes_per_token = static_cast<double>(config.units_per_block()) / config.block_size,
                     .workspace_bytes_per_token = 0.0,
                     .bytes_per_second = 1e6};
  return estimates;
}

SchedulerConfig partial(SchedulerConfig config) {
  config.enable_prefix_caching = false;
  config.enable_partial_caching = true;
  return config;
}

// Blocks of 16 tokens and 2 units; `num_waiting` prompts of 80 tokens, 7 blocks each with the next one to come.
Names grants(int32_t num_blocks, int32_t num_waiting, bool is_known = true) {
  SchedulerConfig config = partial(world_config("ellm"));
  config.num_units = 2 * num_blocks;
  PolicyWorld world(config);
  if (is_known) world.estimates = idle_compute(config);
  for (int32_t i = 0; i < num_waiting; ++i) world.waits(std::string(1, static_cast<char>('a' + i)), {.num_prompt = 80});
  return world.grants();
}

TEST(partial_caching, everything_is_cached_while_memory_suffices) {
  CHECK_EQ(grants(/*num_blocks=*/14, 2), (Names{"a+80", "b+80"}));
  CHECK_EQ(grants(/*num_blocks=*/100, 2), (Names{"a+80", "b+80"}));
}

// 13 - 2 blocks of 16 tokens are cached, of 2 x 81: r = (162 - 11 x 16) / 162 < 0 still; with 9 it is 50 / 162.
TEST(partial_caching, what_does_not_fit_is_recomputed) {
  CHECK_EQ(grants(/*num_blocks=*/13, 2), (Names{"a+80", "b+80"}));
  CHECK_EQ(grants(/*num_blocks=*/9, 2), (Names{"a+80(1)", "b+80(1)"}));  // 0.31 x 80 = 24 tokens: one block
}

TEST(partial_caching, without_costs_nothing_is_recomputed) {
  CHECK_EQ(grants(/*num_blocks=*/9, 2, /*is_known=*/false), (Names{"a+80", "b+80"}));
}

TEST(partial_caching, a_running_request_gives_up_blocks_and_gets_them_back) {
  SchedulerConfig config = partial(world_config("ellm"));
  config.num_units = 2 * 9;
  PolicyWorld world(config);
  world.estimates = idle_compute(config);
  world.runs("a", 1, {.num_prompt = 80});
  CHECK_EQ(world.reshapes(), Names{});
  const Slot b = world.waits("b", {.num_prompt = 80});
  CHECK_EQ(world.reshapes(), (Names{"a>(1)"}));
  BatchPlan plan;
  CHECK(world.memory.reshape(world.table.row[0], {CacheKind::kKv, 1}, &plan.forms));
  CHECK_EQ(world.reshapes(), Names{});  // as it should be
  std::erase(world.waiting, b);
  CHECK_EQ(world.reshapes(), (Names{"a>"}));
}

TEST(partial_caching, where_computing_again_costs_time_nothing_is_recomputed) {
  SchedulerConfig config = partial(world_config("ellm"));
  config.num_units = 2 * 9;
  PolicyWorld world(config);
  world.estimates = idle_compute(config);
  world.estimates.costs.flops_per_second = 1.0;  // a token takes as long as reading all weights
  for (const char* name : {"a", "b"}) world.waits(name, {.num_prompt = 80});
  CHECK_EQ(world.grants(), (Names{"a+80"}));  // and nobody comes in who would have to give way
}

// The same requests with ample and with short memory.
struct Run {
  std::vector<testing::Tokens> outputs;
  int64_t num_uncached = 0;
  int64_t num_preemptions = 0;
};

Run run(int32_t num_blocks) {
  const SchedulerConfig config = partial(timed_config("ellm", num_blocks));
  TimedEngine engine(config, idle_compute(config));
  for (int32_t i = 0; i < 30; ++i) engine.add({.num_prompt = 5 + i * 7 % 50, .max_tokens = 5 + i * 5 % 40});
  engine.run();
  Run result;
  for (const auto& [id, request] : engine.engine.requests) result.outputs.push_back(request.output);
  result.num_uncached = engine.engine.num_uncached;
  result.num_preemptions = engine.num_preemptions();
  return result;
}

TEST(partial_caching, answers_are_the_same_with_ample_and_with_short_memory) {
  const Run ample = run(2000);
  const Run tight = run(60);
  CHECK_EQ(ample.num_uncached, 0);
  CHECK_EQ(ample.num_preemptions, 0);
  CHECK(tight.num_uncached > 100);
  CHECK(ample.outputs == tight.outputs);
}

TEST(partial_caching, more_requests_run_at_once) {
  const auto most_at_once = [](bool is_partial) {
    SchedulerConfig config = partial(timed_config("ellm", 60));
    config.enable_partial_caching = is_partial;
    TimedEngine engine(config, idle_compute(config));
    for (int32_t i = 0; i < 12; ++i) engine.add({.num_prompt = 40, .max_tokens = 10});
    size_t most = 0;
    for (const auto& event : engine.run()) most = std::max(most, event.served.size());
    return most;
  };
  CHECK(most_at_once(true) > most_at_once(false));
}

}  // namespace
}  // namespace hocket
