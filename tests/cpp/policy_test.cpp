#include "policies/policy.h"

#include <cmath>
#include <stdexcept>

#include "policy_world.h"
#include "stages/class_order.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::Names;
using testing::PolicyWorld;
using testing::RequestOf;
using testing::world_config;

// Prompts of 10 tokens; decoding: but for one computed, prefilling: half of it.
struct World : PolicyWorld {
  explicit World(const char* name, int32_t num_rows = 8) : PolicyWorld(world_config(name, num_rows)) {}

  void decoding(const std::string& name, double arrival, int64_t priority = 0) {
    runs(name, 1, {.arrival = arrival, .priority = priority});
  }
  void prefilling(const std::string& name, double arrival, int64_t priority = 0) {
    runs(name, 5, {.arrival = arrival, .priority = priority});
  }
  void waits(const std::string& name, double arrival, int64_t priority = 0) {
    PolicyWorld::waits(name, {.arrival = arrival, .priority = priority});
  }
};

TEST(policy, fcfs_serves_decodes_then_chunks_then_arrivals) {
  World w("fcfs");
  w.prefilling("chunk", 0);
  w.decoding("a", 2);
  w.decoding("b", 1);
  w.waits("late", 9);
  w.waits("early", 8);
  CHECK_EQ(w.grants(), (Names{"a:1", "b:1", "chunk:5", "early+10", "late+10"}));
}

TEST(policy, fcfs_offers_no_more_than_there_are_rows) {
  World w("fcfs", /*num_rows=*/1);
  w.waits("a", 0);
  w.waits("b", 1);
  CHECK_EQ(w.grants(), (Names{"a+10"}));
}

TEST(policy, fcfs_takes_from_the_last_arrival_and_never_for_a_waiting_one) {
  World w("fcfs");
  w.decoding("second", 2, /*priority=*/0);
  w.decoding("first", 1, /*priority=*/9);
  w.waits("early", 0);
  CHECK_EQ(w.victims("first"), (Names{"second", "first"}));
  CHECK_EQ(w.victims("early"), Names{});
}

TEST(policy, fcfs_breaks_ties_by_order_of_submission) {
  World w("fcfs");
  w.waits("one", 3);
  w.waits("two", 3);
  CHECK_EQ(w.grants(), (Names{"one+10", "two+10"}));
}

TEST(policy, priority_serves_decodes_then_chunks_and_arrivals_by_importance) {
  World w("priority");
  w.prefilling("bulk", 0, 5);
  w.decoding("chat", 1, 7);
  w.waits("urgent", 2, 0);
  w.waits("later bulk", 3, 5);
  w.waits("idle", 0, 9);
  CHECK_EQ(w.grants(), (Names{"chat:1", "urgent+10", "bulk:5", "later bulk+10", "idle+10"}));
}

TEST(policy, priority_displaces_only_the_strictly_less_important) {
  World w("priority");
  w.decoding("low", 0, 5);
  w.decoding("lower", 1, 6);
  w.decoding("same", 2, 3);
  w.decoding("high", 3, 1);
  w.waits("new", 4, 3);
  CHECK_EQ(w.victims("new"), (Names{"lower", "low"}));
  CHECK_EQ(w.victims("high"), (Names{"lower", "low", "same", "high"}));
}

// ---- by class: the steps of Echo, and hocket ----

constexpr const char* kByClass[] = {"bs", "bs_e", "bs_es", "echo", "hocket"};

RequestOf offline_at(double arrival) { return {.arrival = arrival, .request_class = kOfflineClass}; }

TEST(policy, by_class_online_requests_come_first_each_class_in_order_of_arrival) {
  for (const char* policy : kByClass) {
    World w(policy);
    w.PolicyWorld::waits("early bulk", offline_at(0));
    w.waits("second", 2);
    w.PolicyWorld::waits("late bulk", offline_at(3));
    w.waits("first", 1);
    CHECK_EQ(w.names_of(w.waiting), (Names{"first", "second", "early bulk", "late bulk"}));
  }
}

TEST(policy, by_class_an_arrival_displaces_offline_requests_only) {
  for (const char* policy : kByClass) {
    World w(policy);
    w.decoding("chat", 0);
    w.runs("bulk", 1, offline_at(1));
    w.runs("late bulk", 1, offline_at(2));
    w.waits("new", 3);
    w.PolicyWorld::waits("new bulk", offline_at(4));
    CHECK_EQ(w.victims("new"), (Names{"late bulk", "bulk"}));
    CHECK_EQ(w.victims("new bulk"), Names{});
    CHECK_EQ(w.victims("chat"), (Names{"late bulk", "bulk", "chat"}));
    CHECK_EQ(w.victims("bulk"), (Names{"late bulk", "bulk"}));
  }
}

TEST(policy, by_class_who_has_starved_is_an_online_request_until_it_ends) {
  for (const char* policy : kByClass) {
    World w(policy);
    w.decoding("chat", 0);
    const Slot starved = w.runs("starved", 1, offline_at(-1));
    w.table.is_starved[starved] = 1;
    w.runs("bulk", 1, offline_at(2));
    w.waits("new", 3);
    CHECK_EQ(w.victims("new"), (Names{"bulk"}));
    CHECK(std::ranges::count(w.victims("chat"), "starved") == 1);
    CHECK(w.victims("chat").front() == "bulk");
  }
}

TEST(policy, hocket_takes_from_those_who_are_late_before_those_who_are_not) {
  World w("hocket");
  w.decoding("late", 0);
  w.decoding("timely", 5);
  w.table.delays[0].is_late = 1;
  CHECK_EQ(w.victims("timely"), (Names{"late", "timely"}));
}

TEST(policy, hocket_serves_prompts_by_deadline_the_late_last_and_the_starving_first) {
  SchedulerConfig config = world_config("hocket");
  config.max_wait_ms = 30'000;
  PolicyWorld w(config);
  w.now = 40.0;
  w.waits("patient", {.arrival = 38.0, .ttft_target = 100.0});
  w.waits("urgent", {.arrival = 39.0, .ttft_target = 5.0});
  w.waits("missed", {.arrival = 20.0, .ttft_target = 1.0});
  w.waits("starving", {.arrival = 9.0, .ttft_target = 1.0});
  w.waits("older", {.arrival = 8.0, .ttft_target = 500.0});
  CHECK_EQ(w.grants(), (Names{"older+10", "starving+10", "urgent+10", "patient+10", "missed+10"}));
}

// Memory of 20 blocks of 16 tokens; the three want 22.
TEST(policy, hocket_serves_the_densest_prompts_first_while_memory_is_contended) {
  SchedulerConfig config = world_config("hocket");
  config.num_units = 40;
  PolicyWorld w(config);
  w.max_num_tokens = 500;
  w.waits("long and urgent", {.num_prompt = 120, .ttft_target = 5.0});
  w.waits("huge", {.num_prompt = 200, .ttft_target = 5.0, .first_token = 1000});
  w.waits("short", {.num_prompt = 10, .ttft_target = 50.0, .first_token = 2000});
  CHECK_EQ(w.grants(), (Names{"short+10", "long and urgent+120"}));
}

TEST(policy, hocket_lets_in_who_can_wait_least_among_equals) {
  SchedulerConfig config = world_config("hocket");
  config.num_units = 14;
  PolicyWorld w(config);
  w.now = 90.0;
  w.waits("patient", {.arrival = 40.0, .num_prompt = 60, .ttft_target = 1000.0});
  w.waits("pressed", {.arrival = 80.0, .num_prompt = 60, .ttft_target = 20.0, .first_token = 1000});
  CHECK_EQ(w.grants(), (Names{"pressed+60"}));
}

TEST(policy, hocket_plans_for_the_margin_that_steps_have_needed) {
  const auto granted_with = [](double margin) {
    SchedulerConfig config = world_config("hocket");
    PolicyWorld w(config);
    w.estimates = linear_seconds(0.0, 0.001);
    w.estimates.margin = StepMargin(margin);
    w.now = 1.0;
    w.runs("decoding", 1, {.arrival = 1.0, .ttft_target = 0.050});
    w.max_num_tokens = 500;
    w.waits("prompt", {.num_prompt = 400, .ttft_target = 5.0, .first_token = 1000});
    return w.grants();
  };
  CHECK_EQ(granted_with(1 / 0.95), (Names{"decoding:1", "prompt+46"}));
  CHECK_EQ(granted_with(2.0), (Names{"decoding:1", "prompt+24"}));
}

TEST(policy, favoured_offline_requests_go_before_the_others) {
  const RequestOf offline{.num_prompt = 40, .request_class = kOfflineClass};
  RequestOf favoured = offline;
  favoured.priority = -1;
  for (const char* policy : {"bs", "bs_e", "bs_es", "echo", "hocket"}) {
    PolicyWorld w(world_config(policy));
    w.estimates = linear_seconds(0.010, 0.001);
    for (int32_t i = 0; i < 3; ++i) w.runs("other" + std::to_string(i), 1, offline);
    for (int32_t i = 0; i < 2; ++i) w.runs("favoured" + std::to_string(i), 1, favoured);
    RequestOf newcomer = favoured;
    newcomer.first_token = 1000;
    w.waits("newcomer", newcomer);
    w.max_num_tokens = 500;
    const Names grants = w.grants();
    CHECK_EQ(Names(grants.begin(), grants.begin() + 3), (Names{"favoured0:1", "favoured1:1", "newcomer+40"}));
    CHECK_EQ(grants.size(), size_t{6});  // the three others lengthen a step of 52 ms by 3
  }
}

TEST(policy, others_lengthen_a_step_of_favoured_requests_by_half) {
  RequestOf favoured{.num_prompt = 40, .request_class = kOfflineClass};
  favoured.priority = -1;
  PolicyWorld w(world_config("hocket"));
  w.estimates = linear_seconds(0.010, 0.001);
  w.runs("favoured", 1, favoured);
  w.runs("other", 300, {.num_prompt = 301, .request_class = kOfflineClass, .first_token = 1000});
  w.max_num_tokens = 500;
  CHECK_EQ(w.grants(), (Names{"favoured:1", "other:5"}));
}

TEST(policy, hocket_leaves_the_reserve_free_to_bursts_without_a_search_too) {
  for (const bool is_favoured : {true, false}) {
    SchedulerConfig config = world_config("hocket", 64);
    config.enable_plan_search = is_favoured;
    PolicyWorld world(config);
    world.runs("chat", 1, {.ttft_target = 1e6});
    const RequestOf of{.priority = is_favoured ? -1 : 0, .num_prompt = 60, .request_class = kOfflineClass};
    const auto num_admitted = [&](int64_t reserve) {
      world.reserve_units = reserve;
      return std::ranges::count_if(world.grants(), [](const std::string& grant) { return grant.starts_with("bulk"); });
    };
    for (int32_t i = 0; i < 10; ++i) {
      auto request = of;
      request.first_token = 1000 * (i + 1);
      world.waits("bulk" + std::to_string(i), request);
    }
    world.max_num_tokens = 2048;
    CHECK_EQ(num_admitted(0), 10);
    CHECK_EQ(num_admitted(config.num_units - 36), 4);  // 4 blocks of 2 units each; the chat is promised some
  }
}

// ---- who reads along ----

// Tokens that the prompt's grants have per step, in many steps at one time: what a step lacks, later ones make up for
// (long_steps.h).
int64_t tokens_per_step(PolicyWorld* world, const std::string& prompt) {
  constexpr int64_t kSteps = 1000;
  int64_t num_tokens = 0;
  for (int64_t i = 0; i < kSteps; ++i) {
    for (const std::string& grant : world->grants()) {
      if (grant.starts_with(prompt + "+")) num_tokens += std::stoll(grant.substr(prompt.size() + 1));
    }
  }
  return (num_tokens + kSteps / 2) / kSteps;
}

// A step takes 30.5 ms and 1 ms per token; 2 x that of 8 decodes is 77 ms, of 1 it is 63 ms: as many wait as read.
TEST(policy, hocket_lets_no_prompt_take_a_whole_step_from_who_reads_along) {
  SchedulerConfig config = world_config("hocket");
  config.max_decode_step_ms = 0;
  PolicyWorld w(config);
  w.estimates = linear_seconds(0.0305, 0.001);
  w.max_num_tokens = 500;
  w.waits("long", {.num_prompt = 400});
  CHECK_EQ(w.grants(), (Names{"long+400"}));  // nobody reads
  w.runs("reader", 1, {.num_prompt = 40, .first_token = 1000});
  CHECK_EQ(w.grants(), (Names{"reader:1", "long+31"}));
}

// Eight prompts of 1024 tokens take 8.192 s; nine tenths of that are 7.37 s. Two wait and one reads: the usual bound is
// what is promised, 77 ms, less the margin. After four times its own 0.4 s a prompt is due: three times the decodes.
// After 12.288 s it is late: all of it.
TEST(policy, hocket_lengthens_the_bound_where_first_tokens_can_still_come_in_time_and_where_they_are_late) {
  for (const auto& [waited, granted] :
       {std::pair(1.5, 41), {5.4, 62}, {6.8, 72}, {8.192, 62}, {12.2, 62}, {12.3, 400}}) {
    SchedulerConfig config = world_config("hocket");
    config.max_decode_step_ms = 0;
    PolicyWorld w(config);
    w.now = waited;
    w.estimates = linear_seconds(0.0305, 0.001);
    w.max_num_tokens = 500;
    w.waits("later", {.arrival = waited - 1, .num_prompt = 400, .first_token = 2000});
    w.waits("long", {.num_prompt = 400});
    w.runs("reader", 1, {.num_prompt = 40, .first_token = 1000});
    if (granted == 400) {
      CHECK_EQ(w.grants(), (Names{"reader:1", "long+400", "later+99"}));
    } else {
      CHECK_EQ(tokens_per_step(&w, "long"), granted);
    }
  }
}

// After 1.5 s it is due where 16 of its 400 tokens are left to be computed, and not where all are: 94.5 ms, less what
// is rounded down, or 73.
TEST(policy, a_prompt_of_which_most_is_cached_is_due_sooner) {
  for (const bool is_cached : {false, true}) {
    SchedulerConfig config = world_config("hocket");
    config.max_decode_step_ms = 0;
    PolicyWorld w(config);
    w.now = 1.5;
    w.estimates = linear_seconds(0.0305, 0.001);
    w.max_num_tokens = 500;
    if (is_cached) w.is_cached({.num_prompt = 400});
    w.waits("first", {.num_prompt = 400});
    w.waits("later", {.arrival = 0.5, .num_prompt = 400, .first_token = 2000});
    w.runs("reader", 1, {.num_prompt = 40, .first_token = 1000});
    CHECK_EQ(tokens_per_step(&w, "first"), is_cached ? 16 : 41);
    CHECK_EQ(tokens_per_step(&w, "later"), is_cached ? 46 : 0);
  }
}

// 2 x the time of 2 decodes is 65 ms, 61.75 ms less the margin.
TEST(policy, hocket_lengthens_no_step_for_who_finds_no_row) {
  SchedulerConfig config = world_config("hocket", /*num_rows=*/2);
  config.max_decode_step_ms = 0;
  PolicyWorld w(config);
  w.now = 20.0;
  w.estimates = linear_seconds(0.0305, 0.001);
  w.max_num_tokens = 500;
  w.waits("old", {.num_prompt = 400});
  w.runs("reader", 1, {.num_prompt = 40, .first_token = 1000});
  w.runs("prompt", 390, {.arrival = 19.0, .num_prompt = 400, .first_token = 2000});
  CHECK_EQ(w.grants().back(), std::string("prompt:30"));
}

// However long it waits.
TEST(policy, hocket_takes_the_bound_that_it_is_told) {
  SchedulerConfig config = world_config("hocket");
  config.max_decode_step_ms = 60.5;
  PolicyWorld w(config);
  w.now = 20.0;
  w.estimates = linear_seconds(0.010, 0.001);
  w.max_num_tokens = 500;
  w.runs("reader", 1, {.num_prompt = 40});
  w.waits("long", {.num_prompt = 400, .first_token = 1000});
  CHECK_EQ(w.grants(), (Names{"reader:1", "long+49"}));
}

TEST(policy, hocket_serves_first_tokens_even_where_decodes_alone_take_longer) {
  SchedulerConfig config = world_config("hocket");
  config.max_decode_step_ms = 10;
  PolicyWorld w(config);
  w.estimates = linear_seconds(0.010, 0.001);
  w.max_num_tokens = 500;
  for (int32_t i = 0; i < 5; ++i) {
    w.runs("reader" + std::to_string(i), 1, {.num_prompt = 40, .first_token = 1000 * (i + 1)});
  }
  w.waits("long", {.num_prompt = 400});
  const Names grants = w.grants();
  CHECK_EQ(grants.back(), std::string("long+64"));
}

// ---- who would be late ----

// 1 ms per token, steps that may take twice as long as predicted.
TEST(policy, a_long_prompt_that_can_just_come_in_time_is_not_late) {
  PolicyWorld w(world_config("hocket"));
  w.estimates = linear_seconds(0.0, 0.001);
  w.estimates.margin = StepMargin(2.0);
  w.max_num_tokens = 500;
  w.waits("short", {.num_prompt = 20, .ttft_target = w.now + 1.0, .first_token = 1000});
  w.waits("long", {.num_prompt = 200, .ttft_target = w.now + 0.3});
  w.waits("too long", {.num_prompt = 250, .ttft_target = w.now + 0.2, .first_token = 2000});
  CHECK_EQ(w.grants(), (Names{"long+200", "short+20", "too long+250"}));
}

// ---- who arrives beside offline work ----

// 1 ms per token; 8 decodes are usual.
TEST(policy, a_step_of_offline_work_is_as_long_as_the_machines_usual_ones) {
  SchedulerConfig config = world_config("hocket");
  config.max_offline_step_ms = 0;
  const Estimates unknown;
  CHECK_EQ(std::lround(1000 * offline_step_seconds(config, linear_seconds(0.0, 0.001), true)), 50);
  CHECK_EQ(std::lround(1000 * offline_step_seconds(config, linear_seconds(0.060, 0.001), true)), 68);
  CHECK_EQ(std::lround(1000 * offline_step_seconds(config, linear_seconds(0.200, 0.001), true)), 100);
  CHECK_EQ(std::lround(1000 * offline_step_seconds(config, unknown, true)), 100);
  CHECK_EQ(std::lround(1000 * offline_step_seconds(config, linear_seconds(0.0, 0.001), false)),
           100);  // nobody is online
  config.max_offline_step_ms = 30;
  CHECK_EQ(std::lround(1000 * offline_step_seconds(config, linear_seconds(0.200, 0.001), true)), 30);
}

// A step may take 100 ms, 51 of them without the prompt: less than 64 tokens are left, by which chunks usually go.
TEST(policy, hocket_lets_offline_prompts_in_however_little_time_others_decodes_leave) {
  for (const int32_t num_prompt : {60, 300}) {
    PolicyWorld w(world_config("hocket"));
    w.estimates = linear_seconds(0.050, 0.001);
    w.max_num_tokens = 500;
    w.runs("row", 1, {.num_prompt = 40, .request_class = kOfflineClass});
    w.waits("next", {.num_prompt = num_prompt, .request_class = kOfflineClass, .first_token = 1000});
    CHECK_EQ(w.grants(), (Names{"row:1", "next+48"}));
  }
}

// ---- priority ----

TEST(policy, hocket_serves_the_more_important_first_and_takes_from_the_less_important) {
  World w("hocket");
  w.waits("plain", 0);
  w.waits("important", 1, -1);
  w.waits("unimportant", 0, 1);
  CHECK_EQ(w.grants(), (Names{"important+10", "plain+10", "unimportant+10"}));
  w.decoding("a", 0, 0);
  w.decoding("b", 1, -1);
  w.decoding("c", 2, 1);
  CHECK_EQ(w.victims("a"), (Names{"c", "a", "b"}));
}

TEST(policy, hocket_gives_contended_memory_to_the_more_important_of_equals) {
  SchedulerConfig config = world_config("hocket");
  config.num_units = 14;
  for (const int64_t priority : {-1, 1}) {
    PolicyWorld w(config);
    w.waits("plain", {.num_prompt = 60});
    w.waits("other", {.priority = priority, .num_prompt = 60, .first_token = 1000});
    w.max_num_tokens = 500;
    CHECK_EQ(w.grants(), (Names{priority < 0 ? "other+60" : "plain+60"}));
  }
}

// ---- apt ----

TEST(policy, apt_admits_the_longest_waiting_per_unit_first) {
  World w("apt");
  w.now = 10.0;
  w.PolicyWorld::waits("short", {.arrival = 5.0, .num_prompt = 10});  // 5 s for 2 units
  w.PolicyWorld::waits("long", {.arrival = 4.0, .num_prompt = 60});   // 6 s for 8 units
  w.PolicyWorld::waits("new", {.arrival = 9.0, .num_prompt = 10});    // 1 s for 2 units
  CHECK_EQ(w.grants(), (Names{"short+10", "long+60", "new+10"}));
}

TEST(policy, apt_admits_who_is_past_its_target_last) {
  World w("apt");
  w.now = 10.0;
  w.PolicyWorld::waits("lost", {.arrival = 1.0, .ttft_target = 2.0});
  w.PolicyWorld::waits("new", {.arrival = 9.0, .ttft_target = 2.0});
  CHECK_EQ(w.grants(), (Names{"new+10", "lost+10"}));
}

TEST(policy, apt_keeps_hidden_states_where_that_lets_more_in) {
  SchedulerConfig config = world_config("apt");
  config.hidden_units_per_group = 1;
  config.num_units = 16;
  PolicyWorld w(config);
  w.now = 10.0;
  w.waits("a", {.num_prompt = 60});  // 8 units as K and V, 4 as hidden states
  w.waits("b", {.arrival = 1.0, .num_prompt = 60});
  CHECK_EQ(w.grants(), (Names{"a+60", "b+60"}));
  w.waits("c", {.arrival = 2.0, .num_prompt = 60});
  const Names grants = w.grants();
  CHECK_EQ(grants.size(), 3);
  CHECK_EQ(std::ranges::count_if(grants, [](const std::string& g) { return g.ends_with("(h)"); }), 2);
}

TEST(policy, apt_lets_a_running_request_be_projected_when_there_is_room) {
  SchedulerConfig config = world_config("apt");
  config.hidden_units_per_group = 1;
  PolicyWorld w(config);
  w.runs("a", 1, {.num_prompt = 60}, {CacheKind::kHidden, 0});
  CHECK_EQ(w.reshapes(), (Names{"a>"}));
  CHECK_EQ(w.preemptions(), Names{});
}

TEST(policy, apt_gives_nobody_up_for_one_who_waits_unless_it_starves) {
  SchedulerConfig config = world_config("apt");
  config.num_units = 16;
  config.max_wait_ms = 30'000;
  PolicyWorld w(config);
  w.now = 20.0;
  w.runs("a", 1, {.arrival = 1.0, .num_prompt = 60});
  w.table.pace[0].last_token_time = 19.9;
  w.waits("b", {.arrival = 0.0, .num_prompt = 60});
  CHECK_EQ(w.preemptions(), Names{});
  w.now = 31.0;
  w.table.pace[0].last_token_time = 30.9;
  CHECK_EQ(w.preemptions(), (Names{"a"}));
  CHECK(std::ranges::count(w.grants(), "b+60") == 1);
}

TEST(policy, apt_counts_those_who_run_when_it_offers_hidden_states_to_those_who_wait) {
  SchedulerConfig config = world_config("apt");
  config.hidden_units_per_group = 1;
  config.num_units = 36;
  PolicyWorld w(config);
  w.now = 10.0;
  LatencyCoefficients k;
  k.hidden_token = 0.025;  // 0.2 s per unit: with the two that wait alone as N, hidden states would seem worth it
  w.estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  for (int32_t i = 0; i < 6; ++i) w.runs("r" + std::to_string(i), 1, {.num_prompt = 20, .first_token = 100 * (i + 2)});
  for (const Slot slot : w.running) w.table.pace[slot].last_token_time = 9.99;
  w.waits("a", {.num_prompt = 60});
  w.waits("b", {.num_prompt = 60, .first_token = 1000});
  for (const std::string& grant : w.grants()) CHECK(!grant.ends_with("(h)"));
}

TEST(policy, apt_weighs_the_late_as_a_constant_however_late_they_are) {
  SchedulerConfig config = world_config("apt");
  config.num_units = 16;
  config.max_wait_ms = 1e9;
  PolicyWorld w(config);
  w.now = 5000.0;
  w.waits("very late", {.arrival = 0.0, .num_prompt = 60, .ttft_target = 1.0});
  w.waits("fresh", {.arrival = 4999.5, .num_prompt = 60});
  const Names grants = w.grants();
  CHECK_EQ(grants.front(), std::string("fresh+60"));
}

// ---- ellm ----

TEST(policy, ellm_is_first_come_first_served_while_memory_suffices) {
  World w("ellm");
  w.prefilling("chunk", 0);
  w.decoding("a", 2);
  w.waits("late", 9);
  w.waits("early", 8);
  CHECK_EQ(w.grants(), (Names{"a:1", "chunk:5", "early+10", "late+10"}));
  CHECK_EQ(w.victims("early"), Names{});
  CHECK_EQ(w.victims("a"), (Names{"a", "chunk"}));
}

// Rates at which a decode of 60 tokens takes a millisecond, most of it to read K and V.
StepCosts even_costs() {
  StepCosts costs;
  costs.form = StepCostForm::kRoofline;
  costs.flops_per_second = 1e12;
  costs.bytes_per_second = 1e9;
  costs.kv_bytes_per_token = 1e6 / 60;
  costs.flops_per_token = 1;
  return costs;
}

TEST(policy, ellm_admits_no_more_than_the_solver_says) {
  SchedulerConfig config = world_config("ellm");
  config.num_units = 16;  // two requests of 60 tokens
  PolicyWorld w(config);
  w.estimates.costs = even_costs();
  w.runs("a", 1, {.num_prompt = 40});
  w.waits("b", {.arrival = 1, .num_prompt = 60, .first_token = 500});
  w.waits("c", {.arrival = 2, .num_prompt = 10, .first_token = 700});
  CHECK_EQ(w.grants(), (Names{"a:1"}));
}

TEST(policy, ellm_keeps_the_step_within_the_targets_of_all_it_takes_in) {
  PolicyWorld w(world_config("ellm"));
  w.estimates.costs = even_costs();
  w.now = 0.001;
  w.runs("a", 1, {.num_prompt = 60, .ttft_target = 0.0035});
  for (int32_t i = 0; i < 4; ++i) {
    w.waits("b" + std::to_string(i), {.arrival = 1e-6 * i, .num_prompt = 60, .first_token = 100 * (i + 2)});
  }
  CHECK_EQ(w.grants().size(), 2);  // 2.5 ms are left of the target: a and b0
  w.table.pace[0].first_due = testing::kNoTarget;
  CHECK_EQ(w.grants().size(), 5);
}

TEST(policy, unknown_names_are_refused) {
  CHECK(!is_policy("best"));
  CHECK_THROWS(make_policy(world_config("best")), std::invalid_argument);
}

}  // namespace
}  // namespace hocket
