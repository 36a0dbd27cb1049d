#include "stages/residents.h"

#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::PolicyWorld;
using testing::RequestOf;
using testing::world_config;

constexpr auto kSkip = static_cast<uint8_t>(KnapsackChoice::kSkip);
constexpr auto kCompact = static_cast<uint8_t>(KnapsackChoice::kCompact);
constexpr auto kKv = static_cast<uint8_t>(KnapsackChoice::kKv);
using Choices = std::vector<uint8_t>;

// Blocks of 16 tokens: 2 units as KV, 1 as hidden states.
SchedulerConfig hidden_config() {
  SchedulerConfig config = world_config();
  config.hidden_units_per_group = 1;
  return config;
}

RequestOf prompt_of(int32_t num_prompt) { return {.num_prompt = num_prompt}; }

UnitsNeeded needed(const PolicyWorld& world, Slot slot) { return units_needed(world.config, world.snapshot(), slot); }

TEST(residents, a_candidate_needs_its_known_tokens_and_the_next_one) {
  PolicyWorld world(hidden_config());
  const Slot exact = world.waits("exact", prompt_of(32));  // the 33rd token needs a third block
  CHECK_EQ(needed(world, exact).kv, 6);
  CHECK_EQ(needed(world, exact).compact, 3);
  const Slot inside = world.waits("inside", prompt_of(31));
  CHECK_EQ(needed(world, inside).kv, 4);
}

TEST(residents, a_single_block_gains_nothing_as_hidden_states) {
  PolicyWorld world(hidden_config());
  const Slot slot = world.waits("short", prompt_of(15));
  CHECK_EQ(needed(world, slot).kv, 2);
  CHECK_EQ(needed(world, slot).compact, 2);
}

TEST(residents, in_int8_all_blocks_are_its_own) {
  SchedulerConfig config = world_config();
  config.int8_units_per_group = 1;
  PolicyWorld world(config);
  CHECK_EQ(needed(world, world.waits("short", prompt_of(15))).compact, 1);
  world.is_cached(prompt_of(40));
  const Slot little = world.waits("little", prompt_of(40));  // 3 blocks, 2 of them cached
  CHECK_EQ(needed(world, little).kv, 2);
  CHECK_EQ(needed(world, little).compact, 2);             // 3 would be more: it is not offered
  const Slot much = world.waits("much", prompt_of(100));  // 7 blocks, 2 of them cached
  CHECK_EQ(needed(world, much).kv, 10);
  CHECK_EQ(needed(world, much).compact, 7);
  const Slot rounded = world.runs("rounded", 1, {.num_prompt = 100, .first_token = 500}, {CacheKind::kInt8, 0});
  CHECK_EQ(needed(world, rounded).kv, 7);  // there is no way back
  CHECK_EQ(needed(world, rounded).compact, 7);
}

TEST(residents, who_runs_stays_k_and_v_before_others_come_in_so) {
  SchedulerConfig config = world_config();
  config.int8_units_per_group = 1;
  PolicyWorld world(config);
  const Slot waits = world.waits("waits", prompt_of(40));
  const Slot runs = world.runs("runs", 1, {.num_prompt = 40, .first_token = 500});
  Residents residents(world.config);
  residents.begin(world.snapshot());
  residents.add(world.snapshot(), waits, 1.0F, 0.0F, 0);
  residents.add(world.snapshot(), runs, 1.0F, 0.5F, 0);
  CHECK_EQ(residents.solve(12).choices, (Choices{kKv, kKv}));
  CHECK_EQ(residents.solve(11).choices, (Choices{kCompact, kKv}));
  CHECK_EQ(residents.solve(8).choices, (Choices{kCompact, kCompact}));
  CHECK_EQ(residents.solve(5).choices, (Choices{kSkip, kCompact}));  // its cache is there
}

TEST(residents, without_a_hidden_cache_both_kinds_need_the_same) {
  PolicyWorld world;
  const Slot slot = world.waits("long", prompt_of(100));
  CHECK_EQ(needed(world, slot).compact, needed(world, slot).kv);
}

TEST(residents, cached_blocks_are_not_needed_again) {
  PolicyWorld world;
  world.is_cached(prompt_of(40));
  CHECK_EQ(needed(world, world.waits("waiting", prompt_of(40))).kv, 2);  // 3 blocks, 2 of them cached
  CHECK_EQ(needed(world, world.runs("running", 1, prompt_of(40))).kv, 2);
}

TEST(residents, a_request_is_past_its_target_once_it_cannot_make_up) {
  PolicyWorld world;
  RequestOf request;
  request.arrival = 1.0;
  request.ttft_target = 2.0;
  request.itl_target = 0.5;
  const Slot slot = world.waits("a", request);
  CHECK(!is_past_target(world.table, slot, 3.0));
  CHECK(is_past_target(world.table, slot, 3.1));
  world.table.append_token(slot, 7);
  world.table.note_token(slot, 2.5);
  CHECK(!is_past_target(world.table, slot, 3.0));
  CHECK(is_past_target(world.table, slot, 3.1));  // its next gap is too long already
  world.table.delays[slot].is_late = 1;
  CHECK(is_past_target(world.table, slot, 2.5));
}

TEST(residents, building_again_takes_the_prefill_of_what_is_computed) {
  PolicyWorld world;
  LatencyCoefficients k;
  k.prefill_token = 0.001;
  k.prefill_pair = 0.0001;
  world.estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  const Slot slot = world.runs("a", 10, prompt_of(30));
  CHECK(std::abs(rebuild_seconds(world.config, world.snapshot(), slot) - (0.020 + 0.040)) < 1e-12);
}

TEST(residents, building_again_costs_something_even_if_nothing_is_known) {
  PolicyWorld world;
  const Slot little = world.runs("a", 25, prompt_of(30));
  const Slot much = world.runs("b", 1, {.num_prompt = 30, .first_token = 500});
  const double seconds = rebuild_seconds(world.config, world.snapshot(), little);
  CHECK(seconds > 0);
  CHECK(rebuild_seconds(world.config, world.snapshot(), much) > seconds);
}

TEST(residents, building_again_from_the_host_takes_the_transfer) {
  SchedulerConfig config = world_config();
  config.preemption = "swap";
  config.num_host_units = 100;
  PolicyWorld world(config);
  world.estimates.host_bytes_per_second = 10.0;
  world.estimates.unit_bytes = 5.0;
  const Slot slot = world.runs("a", 10, prompt_of(30));
  CHECK_EQ(rebuild_seconds(world.config, world.snapshot(), slot), 2 * 2 * 5.0 / 10.0);  // 2 blocks of 2 units
}

TEST(residents, the_first_of_equals_is_placed) {
  PolicyWorld world;
  const Slot a = world.waits("a", prompt_of(40));
  const Slot b = world.waits("b", prompt_of(40));
  Residents residents(world.config);
  residents.begin(world.snapshot());
  for (const Slot slot : {a, b}) residents.add(world.snapshot(), slot, 1.0F, 0.0F, 0);
  CHECK_EQ(residents.solve(11).choices, (Choices{kKv, kSkip}));
  CHECK_EQ(residents.solve(12).choices, (Choices{kKv, kKv}));
  CHECK_EQ(residents.solve(-3).choices, (Choices{kSkip, kSkip}));
}

TEST(residents, what_runs_keeps_its_place_against_a_little_more_value) {
  PolicyWorld world;
  const Slot runs = world.runs("runs", 1, prompt_of(40));
  const Slot waits = world.waits("waits", prompt_of(40));
  Residents residents(world.config);
  const auto choices = [&](float value_of_waiting) {
    residents.begin(world.snapshot());
    residents.add(world.snapshot(), waits, value_of_waiting, /*keep=*/1.0F, 0);  // not resident: no bonus
    residents.add(world.snapshot(), runs, 1.0F, /*keep=*/1.0F, 0);
    const auto chosen = residents.solve(6).choices;
    return Choices(chosen.begin(), chosen.end());
  };
  CHECK_EQ(choices(1.9F), (Choices{kSkip, kKv}));
  CHECK_EQ(choices(2.1F), (Choices{kKv, kSkip}));
}

TEST(residents, hidden_states_make_room_for_both) {
  PolicyWorld world(hidden_config());
  const Slot a = world.waits("a", prompt_of(40));
  const Slot b = world.waits("b", prompt_of(40));
  Residents residents(world.config);
  residents.begin(world.snapshot());
  for (const Slot slot : {a, b}) residents.add(world.snapshot(), slot, 1.0F, 0.0F, 0);
  CHECK_EQ(residents.solve(6).choices, (Choices{kCompact, kCompact}));
  CHECK_EQ(residents.solve(9).choices, (Choices{kKv, kCompact}));
}

TEST(residents, a_dear_projection_makes_hidden_states_worthless) {
  PolicyWorld world(hidden_config());
  LatencyCoefficients k;
  k.hidden_token = 1.0;  // seconds: 16 tokens per block, 2 units, 3 blocks
  world.estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  const Slot a = world.waits("a", prompt_of(40));
  const Slot b = world.waits("b", prompt_of(40));
  Residents residents(world.config);
  residents.begin(world.snapshot());
  for (const Slot slot : {a, b}) residents.add(world.snapshot(), slot, 50.0F, 0.0F, 0);
  CHECK_EQ(residents.solve(6).choices, (Choices{kKv, kSkip}));
}

TEST(residents, who_must_be_scheduled_is_placed_whole_and_first) {
  PolicyWorld world(hidden_config());
  const Slot dense = world.waits("dense", prompt_of(40));
  const Slot starving = world.waits("starving", prompt_of(40));
  Residents residents(world.config);
  residents.begin(world.snapshot());
  residents.add(world.snapshot(), dense, 100.0F, 0.0F, 0);
  residents.add(world.snapshot(), starving, 1.0F, 0.0F, KnapsackCandidates::kMustSchedule);
  CHECK_EQ(residents.solve(6).choices, (Choices{kSkip, kKv}));
  CHECK_EQ(residents.solve(9).choices, (Choices{kCompact, kKv}));
}

TEST(residents, who_is_found_to_starve_after_it_was_added_is_placed_whole_and_first) {
  PolicyWorld world(hidden_config());
  const Slot dense = world.waits("dense", prompt_of(40));
  const Slot starving = world.waits("starving", prompt_of(40));
  Residents residents(world.config);
  residents.begin(world.snapshot());
  residents.add(world.snapshot(), dense, 100.0F, 0.0F, 0);
  residents.add(world.snapshot(), starving, 1.0F, 0.0F, 0);
  residents.set_must_schedule(1);
  CHECK_EQ(residents.solve(6).choices, (Choices{kSkip, kKv}));
}

TEST(residents, hidden_states_delay_those_who_are_no_candidates_too) {
  PolicyWorld world(hidden_config());
  LatencyCoefficients k;
  k.hidden_token = 1e-3;  // seconds: 8 tokens' worth per unit of K and V, 6 units each
  world.estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  const Slot a = world.waits("a", prompt_of(40));
  const Slot b = world.waits("b", prompt_of(40));
  Residents residents(world.config);
  residents.begin(world.snapshot());
  for (const Slot slot : {a, b}) residents.add(world.snapshot(), slot, 1.0F, 0.0F, 0);
  CHECK_EQ(residents.solve(6).choices, (Choices{kCompact, kCompact}));
  CHECK_EQ(residents.solve(6, /*num_delayed=*/40).choices, (Choices{kKv, kSkip}));
}

TEST(residents, what_is_past_its_target_counts_next_to_nothing) {
  PolicyWorld world;
  const Slot late = world.waits("late", prompt_of(40));
  const Slot timely = world.waits("timely", prompt_of(40));
  Residents residents(world.config);
  residents.begin(world.snapshot());
  residents.add(world.snapshot(), late, 100.0F, 0.0F, KnapsackCandidates::kPastTarget);
  residents.add(world.snapshot(), timely, 1.0F, 0.0F, 0);
  CHECK_EQ(residents.solve(6).choices, (Choices{kSkip, kKv}));
}

TEST(residents, a_running_form_is_what_the_knapsack_may_keep) {
  PolicyWorld world(hidden_config());
  const Slot hidden = world.runs("hidden", 1, prompt_of(40), {CacheKind::kHidden, 0});
  const Slot kv = world.runs("kv", 1, {.num_prompt = 40, .first_token = 500});
  Residents residents(world.config);
  residents.begin(world.snapshot());
  for (const Slot slot : {hidden, kv}) residents.add(world.snapshot(), slot, 1.0F, 1.0F, 0);
  CHECK_EQ(residents.flags(0), KnapsackCandidates::kResidentCompact);
  CHECK_EQ(residents.flags(1), KnapsackCandidates::kResidentKv);
}

}  // namespace
}  // namespace hocket
