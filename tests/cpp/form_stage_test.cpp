// The united policy's forms of cache: hidden states, a few tokens left uncached, and K and V again. All of it only
// while memory binds, and only where it costs less than it brings.

#include "stages/form_stage.h"

#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::Names;
using testing::PolicyWorld;
using testing::world_config;

constexpr double kStep = 0.010;  // seconds, of a step without tokens

// Blocks of 16 tokens: 2 units as K and V, 1 as hidden states.
SchedulerConfig hidden_config(int32_t num_blocks) {
  SchedulerConfig config = world_config("hocket");
  config.num_units = 2 * num_blocks;
  config.hidden_units_per_group = 1;
  return config;
}

SchedulerConfig partial_config(int32_t num_blocks) {
  SchedulerConfig config = world_config("hocket");
  config.num_units = 2 * num_blocks;
  config.enable_prefix_caching = false;
  config.enable_partial_caching = true;
  return config;
}

Estimates projecting(double seconds_per_token) {
  LatencyCoefficients k;
  k.step_base = kStep;
  k.prefill_token = k.decode_seq = 1e-6;
  k.hidden_token = seconds_per_token;
  k.overlap = 0.0;
  Estimates estimates;
  estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  return estimates;
}

// Beside a request that decodes in 3 blocks, what becomes of a prompt of 7.
Names grants_as_hidden(int32_t num_blocks, double seconds_per_token) {
  PolicyWorld world(hidden_config(num_blocks));
  world.estimates = projecting(seconds_per_token);
  world.runs("a", 1, {.num_prompt = 40});
  world.waits("b", {.num_prompt = 100, .first_token = 500});
  return world.grants();
}

TEST(form_stage, with_memory_for_all_nobody_is_kept_as_hidden_states) {
  CHECK_EQ(grants_as_hidden(/*num_blocks=*/100, 0.0), (Names{"a:1", "b+63"}));
}

TEST(form_stage, hidden_states_let_one_in_where_projecting_costs_little) {
  CHECK_EQ(grants_as_hidden(/*num_blocks=*/9, 1e-6), (Names{"a:1", "b+63(h)"}));
}

// 7 blocks of 16 tokens, for two requests: they cost as much as they bring at kStep / 224 = 45 us per token. Half of
// the memory must be worth more than half, so that it ends at half of that.
TEST(form_stage, a_step_that_projecting_would_lengthen_by_more_than_it_brings_stays_short) {
  CHECK_EQ(grants_as_hidden(/*num_blocks=*/9, 20e-6), (Names{"a:1", "b+63(h)"}));
  CHECK_EQ(grants_as_hidden(/*num_blocks=*/9, 25e-6), (Names{"a:1"}));
}

SchedulerConfig int8_config(int32_t num_blocks) {
  SchedulerConfig config = world_config("hocket");
  config.num_units = 2 * num_blocks;
  config.int8_units_per_group = 1;
  return config;
}

TEST(form_stage, with_memory_for_all_nobody_is_rounded) {
  PolicyWorld world(int8_config(100));
  world.runs("a", 1, {.num_prompt = 40});
  world.waits("b", {.num_prompt = 100, .first_token = 500});
  const Composition composition = world.compose();
  CHECK(composition.reshapes.empty());
  CHECK_EQ(world.grants(), (Names{"a:1", "b+63"}));
}

TEST(form_stage, int8_lets_one_in_and_leaves_who_runs_as_it_is_where_that_is_enough) {
  PolicyWorld world(int8_config(10));  // 20 units: 6 and 14 as K and V, and 6 to leave free for the steps to come
  world.runs("a", 1, {.num_prompt = 40});
  world.waits("b", {.num_prompt = 100, .first_token = 500});
  CHECK(world.compose().reshapes.empty());
  CHECK_EQ(world.grants(), (Names{"a:1", "b+63(i8)"}));
}

TEST(form_stage, who_runs_is_rounded_in_place_and_goes_on) {
  PolicyWorld world(int8_config(10));                      // 20 units
  const Slot a = world.runs("a", 1, {.num_prompt = 100});  // 14 as K and V
  world.waits("b", {.num_prompt = 100, .first_token = 500});
  const Composition composition = world.compose();
  CHECK(composition.preemptions.empty());
  CHECK_EQ(composition.reshapes.size(), 1);
  CHECK_EQ(composition.reshapes[0].slot, a);
  CHECK(composition.reshapes[0].form == (CacheForm{CacheKind::kInt8, 0}));
  CHECK_EQ(world.grants(), (Names{"a:1", "b+63(i8)"}));
}

TEST(form_stage, what_is_rounded_stays_so_when_there_is_room) {
  PolicyWorld world(int8_config(100));
  world.runs("a", 1, {.num_prompt = 100}, {CacheKind::kInt8, 0});
  CHECK(world.compose().reshapes.empty());
}

// Beside a request that decodes in 3 blocks, a prompt of 8.
Names grants_as_partial(int32_t num_blocks, Estimates estimates) {
  PolicyWorld world(partial_config(num_blocks));
  world.estimates = estimates;
  world.runs("a", 1, {.num_prompt = 40});
  world.waits("b", {.num_prompt = 112, .first_token = 500});
  return world.grants();
}

// 9 blocks less 3, and 2 that stay free: 4 of 8 are missing.
TEST(form_stage, a_request_comes_in_without_the_blocks_that_are_missing) {
  CHECK_EQ(grants_as_partial(/*num_blocks=*/9, linear_seconds(kStep, 1e-6)), (Names{"a:1", "b+63(4)"}));
  CHECK_EQ(grants_as_partial(/*num_blocks=*/100, linear_seconds(kStep, 1e-6)), (Names{"a:1", "b+63"}));
}

// 4 blocks of 16 tokens, for two requests: worth it below kStep / 128 = 78 us per token.
TEST(form_stage, recomputing_that_costs_more_than_it_brings_is_left) {
  CHECK_EQ(grants_as_partial(/*num_blocks=*/9, linear_seconds(kStep, 70e-6)), (Names{"a:1", "b+63(4)"}));
  CHECK_EQ(grants_as_partial(/*num_blocks=*/9, linear_seconds(kStep, 90e-6)), (Names{"a:1"}));
}

// 8 blocks less 6, and 2 that stay free: all 4 complete ones of 5 are missing, and one of those that run.
TEST(form_stage, who_runs_gives_up_what_a_request_lacks_beyond_its_own) {
  PolicyWorld world(partial_config(8));
  world.estimates = linear_seconds(kStep, 1e-6);
  world.runs("a", 1, {.num_prompt = 88});
  world.waits("b", {.num_prompt = 64, .first_token = 500});
  CHECK_EQ(world.grants(), (Names{"a:1", "b+63(4)"}));
  CHECK_EQ(world.reshapes(), (Names{"a>(1)"}));
}

// The same requests. What they lack is recomputed in every step, beside one token at least.
void check_squeezed_in(int32_t max_num_batched_tokens, const Names& grants, const Names& reshapes) {
  SchedulerConfig config = partial_config(8);
  config.max_num_batched_tokens = max_num_batched_tokens;
  PolicyWorld world(config);
  world.estimates = linear_seconds(kStep, 1e-6);
  world.runs("a", 1, {.num_prompt = 88});
  world.waits("b", {.num_prompt = 64, .first_token = 500});
  CHECK_EQ(world.grants(), grants);
  CHECK_EQ(world.reshapes(), reshapes);
}

TEST(form_stage, nobody_lacks_more_than_a_step_computes) {
  check_squeezed_in(3 * 16 + 1, {"a:1", "b+63(3)"}, {"a>(2)"});
  check_squeezed_in(3 * 16, {"a:1"}, {});
}

TEST(form_stage, without_step_times_nobody_is_squeezed_in) {
  CHECK_EQ(grants_as_partial(/*num_blocks=*/9, Estimates()), (Names{"a:1"}));
}

TEST(form_stage, a_step_longer_than_a_deadline_allows_squeezes_nobody_in) {
  PolicyWorld world(partial_config(9));
  world.estimates = linear_seconds(kStep, 50e-6);
  world.runs("a", 1, {.num_prompt = 40, .ttft_target = 1.2 * kStep});
  world.waits("b", {.num_prompt = 112, .first_token = 500});
  CHECK_EQ(world.grants(), (Names{"a:1"}));
}

TEST(form_stage, with_room_again_everything_becomes_k_and_v) {
  PolicyWorld hidden(hidden_config(100));
  hidden.runs("a", 1, {.num_prompt = 80}, {CacheKind::kHidden, 0});
  hidden.runs("b", 1, {.num_prompt = 80, .first_token = 500});
  CHECK_EQ(hidden.reshapes(), (Names{"a>"}));

  PolicyWorld partial(partial_config(100));
  partial.runs("a", 1, {.num_prompt = 80}, {CacheKind::kKv, 3});
  CHECK_EQ(partial.reshapes(), (Names{"a>"}));
}

// 7 blocks: 3 are held, one is promised, and 2 stay free for whoever runs and arrives.
TEST(form_stage, as_much_comes_back_as_there_is_room_for) {
  PolicyWorld world(partial_config(7));
  world.runs("a", 1, {.num_prompt = 80}, {CacheKind::kKv, 2});
  CHECK_EQ(world.reshapes(), (Names{"a>(1)"}));
}

TEST(form_stage, hidden_states_come_back_all_at_once_or_not) {
  PolicyWorld world(hidden_config(7));
  world.runs("a", 1, {.num_prompt = 80}, {CacheKind::kHidden, 0});  // 6 units; 5 more, and 4 that stay free
  CHECK_EQ(world.reshapes(), Names{});
}

}  // namespace
}  // namespace hocket
