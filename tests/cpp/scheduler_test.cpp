#include "scheduler/scheduler.h"

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "fake_engine.h"
#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::FakeEngine;
using testing::Tokens;
using Ids = std::vector<uint64_t>;

// Blocks of 4 tokens; 2 layer groups, so 4 units per block.
SchedulerConfig config_of(int32_t num_blocks, int32_t max_num_batched_tokens = 64) {
  SchedulerConfig config;
  config.num_units = 4 * num_blocks;
  config.num_layers = 8;
  config.block_size = 4;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.max_model_len = 64;
  return config;
}

SchedulerConfig with_policy(SchedulerConfig config, const char* policy) {
  config.policy = policy;
  return config;
}

Tokens prompt_of(int32_t num_tokens, int32_t from = 0) {
  Tokens tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

Ids run_to_preemption(FakeEngine* engine) {
  Ids preempted;
  while (preempted.empty()) {
    CHECK(engine->scheduler.has_work());
    preempted = engine->step().preempted_ids;
  }
  return preempted;
}

// ---- one request ----

TEST(scheduler, a_request_prefills_decodes_and_ends) {
  FakeEngine engine(config_of(16));
  engine.add(1, prompt_of(5), 3);
  CHECK_EQ(engine.step().num_tokens(), 5);
  CHECK_EQ(engine.step().num_tokens(), 1);
  CHECK_EQ(engine.step().num_tokens(), 1);
  CHECK(!engine.scheduler.has_work());
  CHECK_EQ(engine.output(1).size(), 3);
  CHECK_EQ(engine.requests[1].reason, FinishReason::kLength);
  CHECK(engine.step().empty());
}

TEST(scheduler, a_prompt_longer_than_the_budget_is_computed_in_chunks) {
  FakeEngine engine(config_of(16, /*max_num_batched_tokens=*/4));
  engine.add(1, prompt_of(10), 1);
  CHECK_EQ(engine.step().seq_lens, (Tokens{4}));
  CHECK_EQ(engine.step().seq_lens, (Tokens{8}));
  CHECK(engine.output(1).empty());
  CHECK_EQ(engine.step().seq_lens, (Tokens{10}));
  CHECK_EQ(engine.output(1).size(), 1);
}

TEST(scheduler, decodes_go_before_chunks_in_one_budget) {
  FakeEngine engine(config_of(32, 6));
  engine.add(1, prompt_of(2), 9);
  engine.step();
  engine.add(2, prompt_of(20, 100), 9);
  const BatchPlan plan = engine.step();
  CHECK_EQ(plan.request_ids, (Ids{1, 2}));
  CHECK_EQ(plan.query_start, (Tokens{0, 1, 6}));
  CHECK_EQ(plan.sample_seqs, (Tokens{0}));
}

TEST(scheduler, a_model_s_length_ends_a_request) {
  FakeEngine engine(config_of(16));
  engine.add(1, prompt_of(60), 1000);
  engine.run();
  CHECK_EQ(engine.output(1).size(), 4);
  CHECK_EQ(engine.requests[1].reason, FinishReason::kLength);
}

TEST(scheduler, a_stop_token_ends_a_request_and_is_its_last_token) {
  FakeEngine engine(config_of(16), /*vocab_size=*/2);
  RequestSpec spec;
  spec.id = 1;
  spec.max_tokens = 50;
  engine.add(spec, prompt_of(3), "", /*stops=*/{1});
  engine.run();
  CHECK_EQ(engine.output(1).back(), 1);
  CHECK_EQ(engine.requests[1].reason, FinishReason::kStop);
  CHECK_EQ(std::ranges::count(engine.output(1), 1), 1);
}

// ---- what is refused ----

TEST(scheduler, refuses_what_is_wrong_and_changes_nothing) {
  Scheduler scheduler(config_of(16));
  const auto status = [&](auto&& change) {
    const Tokens prompt = prompt_of(3);
    RequestSpec spec;
    spec.id = 7;
    spec.prompt = prompt;
    change(&spec);
    return scheduler.add_request(spec);
  };
  const Tokens negative = {1, -1};
  CHECK_EQ(status([](RequestSpec* s) { s->prompt = {}; }), AddStatus::kInvalid);
  CHECK_EQ(status([&](RequestSpec* s) { s->prompt = negative; }), AddStatus::kInvalid);
  CHECK_EQ(status([](RequestSpec* s) { s->max_tokens = 0; }), AddStatus::kInvalid);
  CHECK_EQ(status([](RequestSpec* s) { s->min_tokens = -1; }), AddStatus::kInvalid);
  CHECK_EQ(status([](RequestSpec* s) { s->request_class = 3; }), AddStatus::kInvalid);
  CHECK_EQ(status([](RequestSpec* s) { s->request_class = -1; }), AddStatus::kInvalid);
  CHECK_EQ(status([](RequestSpec* s) { s->arrival_time = std::nan(""); }), AddStatus::kInvalid);
  CHECK(!scheduler.has_work());
  CHECK_EQ(status([](RequestSpec*) {}), AddStatus::kOk);
  CHECK_EQ(status([](RequestSpec*) {}), AddStatus::kDuplicateId);
  scheduler.check_invariants();
}

TEST(scheduler, refuses_what_could_never_be_computed) {
  FakeEngine model_bound(config_of(100));
  CHECK_EQ(model_bound.add(1, prompt_of(64), 1), AddStatus::kTooLong);
  CHECK_EQ(model_bound.add(1, prompt_of(63), 1), AddStatus::kOk);
  FakeEngine pool_bound(config_of(4));  // 16 tokens
  CHECK_EQ(pool_bound.add(1, prompt_of(10), 7), AddStatus::kTooLong);
  CHECK_EQ(pool_bound.add(1, prompt_of(10), 6), AddStatus::kOk);
  SchedulerConfig whole = config_of(100, 20);
  whole.enable_chunked_prefill = false;
  FakeEngine budget_bound(whole);
  CHECK_EQ(budget_bound.add(1, prompt_of(21), 1), AddStatus::kTooLong);
  CHECK_EQ(budget_bound.add(1, prompt_of(20), 1), AddStatus::kOk);
}

TEST(scheduler, refuses_beyond_the_queue) {
  SchedulerConfig config = config_of(16);
  config.max_num_waiting = 2;
  FakeEngine engine(config);
  CHECK_EQ(engine.add(1, prompt_of(3), 1), AddStatus::kOk);
  CHECK_EQ(engine.add(2, prompt_of(3), 1), AddStatus::kOk);
  CHECK_EQ(engine.add(3, prompt_of(3), 1), AddStatus::kQueueFull);
  engine.step();
  CHECK_EQ(engine.add(3, prompt_of(3), 1), AddStatus::kOk);
}

TEST(scheduler, an_id_is_free_again_after_the_end) {
  FakeEngine engine(config_of(16));
  engine.add(1, prompt_of(3), 1);
  CHECK_EQ(engine.add(1, prompt_of(3), 1), AddStatus::kDuplicateId);
  engine.run();
  CHECK_EQ(engine.add(1, prompt_of(3), 1), AddStatus::kOk);
}

// ---- the step's protocol ----

TEST(scheduler, schedule_and_commit_alternate) {
  Scheduler scheduler(config_of(16));
  CHECK_THROWS(scheduler.commit({}, 0.0), CoreError);
  CHECK(scheduler.schedule(0.0).empty());
  CHECK_THROWS(scheduler.commit({}, 0.0), CoreError);
  const Tokens prompt = prompt_of(3);
  RequestSpec spec;
  spec.prompt = prompt;
  scheduler.add_request(spec);
  CHECK_EQ(scheduler.schedule(0.0).step_id, 1);
  CHECK_THROWS(scheduler.schedule(0.0), CoreError);
  CHECK_THROWS(scheduler.commit({}, 0.0), CoreError);
  CHECK_THROWS(scheduler.commit(Tokens{1, 2}, 0.0), CoreError);
  CHECK_THROWS(scheduler.commit(Tokens{-2}, 0.0), CoreError);
  CHECK_EQ(scheduler.commit(Tokens{1}, 0.0).token_ids, (Tokens{1}));
}

TEST(scheduler, a_request_without_a_token_fails_alone_and_shares_nothing_of_its_step) {
  FakeEngine engine(config_of(64));
  engine.add(1, prompt_of(20), 5);
  bool is_first = true;
  engine.fails_sample = [&] { return std::exchange(is_first, false); };
  engine.add(2, prompt_of(20, 100), 5);
  engine.run();
  CHECK_EQ(engine.requests.at(1).reason, FinishReason::kError);
  CHECK_EQ(engine.requests.at(2).reason, FinishReason::kLength);
  CHECK_EQ(engine.scheduler.stats().counters.num_finished[static_cast<size_t>(FinishReason::kError)], 1);
  engine.add(3, prompt_of(20), 5);
  engine.add(4, prompt_of(20, 100), 5);
  engine.run();
  CHECK_EQ(engine.requests.at(3).num_cached_tokens, 0);
  CHECK(engine.requests.at(4).num_cached_tokens > 0);
}

TEST(scheduler, a_decode_keeps_its_place) {
  FakeEngine engine(config_of(32));
  for (uint64_t id = 1; id <= 4; ++id) engine.add(id, prompt_of(3, 10 * static_cast<int32_t>(id)), 20);
  engine.step();
  CHECK_EQ(engine.step().request_ids, (Ids{1, 2, 3, 4}));
  engine.abort(2);
  engine.add(5, prompt_of(3, 90), 20);
  engine.step();
  CHECK_EQ(engine.step().request_ids, (Ids{1, 3, 4, 5}));
}

// ---- prefix cache ----

TEST(scheduler, a_second_prompt_hits_what_the_first_computed_while_it_runs) {
  FakeEngine engine(config_of(32));
  engine.add(1, prompt_of(10), 9);
  engine.step();
  engine.add(2, prompt_of(10), 9);
  const BatchPlan plan = engine.step();
  CHECK_EQ(plan.query_start, (Tokens{0, 1, 3}));  // 8 of 10 tokens are cached
  CHECK_EQ(engine.requests[2].num_cached_tokens, 8);
  engine.run();
  CHECK_EQ(engine.output(1), engine.output(2));
}

TEST(scheduler, twins_admitted_together_end_up_sharing) {
  FakeEngine engine(config_of(32));
  engine.add(1, prompt_of(8), 9);
  engine.add(2, prompt_of(8), 9);
  engine.step();
  const auto stats = engine.scheduler.stats();
  CHECK_EQ(stats.num_units - stats.num_free_units, 2 * 4);
  engine.run();
}

TEST(scheduler, the_next_turn_of_a_chat_hits_prompt_and_answer) {
  FakeEngine engine(config_of(32));
  engine.add(1, prompt_of(6), 7);
  engine.run();
  Tokens next = prompt_of(6);
  next.insert(next.end(), engine.output(1).begin(), engine.output(1).end());
  next.push_back(99);
  engine.add(2, next, 1);
  engine.run();
  CHECK_EQ(engine.requests[2].num_cached_tokens, 12);  // the last token of the answer was never computed
}

TEST(scheduler, salts_isolate) {
  FakeEngine engine(config_of(32));
  RequestSpec spec;
  spec.id = 1;
  engine.add(spec, prompt_of(10), "a");
  engine.run();
  spec.id = 2;
  engine.add(spec, prompt_of(10), "b");
  spec.id = 3;
  engine.add(spec, prompt_of(10), "a");
  engine.run();
  CHECK_EQ(engine.requests[2].num_cached_tokens, 0);
  CHECK_EQ(engine.requests[3].num_cached_tokens, 8);
}

TEST(scheduler, a_reset_forgets_what_nobody_runs) {
  FakeEngine engine(config_of(32));
  engine.add(1, prompt_of(10), 1);
  engine.run();
  CHECK_EQ(engine.scheduler.reset_prefix_cache(), 2);
  const auto stats = engine.scheduler.stats();
  CHECK_EQ(stats.num_free_units, stats.num_units);
  engine.scheduler.check_invariants();
}

// ---- memory pressure ----

TEST(scheduler, fcfs_preempts_the_last_arrival_which_returns_to_its_place) {
  FakeEngine engine(config_of(8));
  engine.add(1, prompt_of(8, 0), 16);
  engine.add(2, prompt_of(8, 100), 16);  // both need 6 blocks in the end
  engine.add(3, prompt_of(8, 200), 1);
  CHECK_EQ(run_to_preemption(&engine), (Ids{2}));
  CHECK_EQ(engine.scheduler.stats().num_waiting[0], 2);
  engine.run();
  for (const uint64_t id : {1, 2}) CHECK_EQ(engine.output(id).size(), 16);
  CHECK_EQ(engine.requests[3].output.size(), 1);
}

TEST(scheduler, nobody_overtakes_a_preempted_request_in_the_same_step) {
  SchedulerConfig config = config_of(8, /*max_num_batched_tokens=*/3);
  config.block_size = 1;
  FakeEngine engine(config);
  engine.add(1, prompt_of(1, 0), 4);
  engine.add(2, prompt_of(2, 100), 4);
  engine.add(3, prompt_of(1, 200), 1);  // small enough for what 2 leaves behind
  CHECK_EQ(run_to_preemption(&engine), (Ids{2}));
  CHECK(engine.output(3).empty());
  engine.run();
}

TEST(scheduler, a_preempted_request_resumes_at_its_cached_prefix) {
  FakeEngine engine(config_of(8));
  engine.add(1, prompt_of(8, 0), 12);
  engine.add(2, prompt_of(8, 100), 12);
  run_to_preemption(&engine);
  engine.abort(1);
  const BatchPlan plan = engine.step();
  CHECK_EQ(plan.request_ids, (Ids{2}));
  CHECK(plan.positions[0] > 0);
  CHECK_EQ(plan.positions[0] % 4, 0);
  engine.run();
  CHECK_EQ(engine.requests[2].num_cached_tokens, 0);  // reported of the first admission
}

TEST(scheduler, fcfs_never_preempts_for_a_waiting_request) {
  FakeEngine engine(config_of(8));
  engine.now = 5.0;
  RequestSpec late;
  late.id = 1;
  late.max_tokens = 8;
  late.arrival_time = 5.0;
  engine.add(late, prompt_of(16));
  engine.step();
  RequestSpec early;
  early.id = 2;
  early.arrival_time = 1.0;
  engine.add(early, prompt_of(16, 100));
  engine.run();
  CHECK_EQ(engine.scheduler.stats().counters.num_preemptions, 0);
}

TEST(scheduler, fcfs_does_not_let_small_requests_overtake_a_large_one) {
  FakeEngine engine(config_of(8));
  engine.add(1, prompt_of(16), 8);
  engine.step();
  engine.add(2, prompt_of(24, 100), 1);  // does not fit beside 1
  engine.add(3, prompt_of(2, 200), 1);   // would
  CHECK_EQ(engine.step().request_ids, (Ids{1}));
  engine.run();
}

TEST(scheduler, priority_displaces_the_less_important_for_memory) {
  FakeEngine engine(with_policy(config_of(8), "priority"));
  engine.add(1, prompt_of(16), 8, /*priority=*/5);
  engine.step();
  engine.add(2, prompt_of(16, 100), 4, /*priority=*/1);
  const BatchPlan plan = engine.step();
  CHECK_EQ(plan.request_ids, (Ids{2}));
  CHECK_EQ(plan.preempted_ids, (Ids{1}));
  engine.run();
  CHECK_EQ(engine.scheduler.stats().counters.num_preemptions, 1);
}

TEST(scheduler, the_tokens_of_a_displaced_request_go_to_others_in_the_same_step) {
  FakeEngine engine(with_policy(config_of(8, /*max_num_batched_tokens=*/16), "priority"));
  engine.add(1, prompt_of(16), 8, /*priority=*/5);
  engine.step();
  engine.add(2, prompt_of(20, 100), 4, /*priority=*/1);
  const BatchPlan plan = engine.step();  // 1 was granted its decode before 2 displaced it
  CHECK_EQ(plan.preempted_ids, (Ids{1}));
  CHECK_EQ(plan.num_tokens(), 16);
  engine.run();
}

TEST(scheduler, priority_displaces_the_less_important_for_a_row) {
  SchedulerConfig config = with_policy(config_of(32), "priority");
  config.max_num_seqs = 2;
  FakeEngine engine(config);
  engine.add(1, prompt_of(3, 0), 9, 5);
  engine.add(2, prompt_of(3, 100), 9, 6);
  engine.step();
  engine.add(3, prompt_of(3, 200), 2, 1);
  CHECK_EQ(engine.step().preempted_ids, (Ids{2}));
  engine.run();
  CHECK_EQ(engine.scheduler.stats().counters.num_preemptions, 1);
}

TEST(scheduler, priority_does_not_displace_its_equal) {
  FakeEngine engine(with_policy(config_of(8), "priority"));
  engine.add(1, prompt_of(16), 8, 3);
  engine.step();
  engine.add(2, prompt_of(16, 100), 4, 3);
  engine.run();
  CHECK_EQ(engine.scheduler.stats().counters.num_preemptions, 0);
}

TEST(scheduler, priority_displaces_nobody_if_that_would_not_be_enough) {
  FakeEngine engine(with_policy(config_of(12), "priority"));
  engine.add(1, prompt_of(24, 0), 8, /*priority=*/0);
  engine.add(2, prompt_of(4, 100), 8, /*priority=*/9);
  engine.step();
  engine.add(3, prompt_of(24, 200), 8, /*priority=*/5);  // 1 alone leaves no room for it
  const BatchPlan plan = engine.step();
  CHECK_EQ(plan.preempted_ids, Ids{});
  CHECK_EQ(plan.request_ids, (Ids{1, 2}));
  engine.run();
}

// FakeEngine checks every step that nobody is preempted for growth within block_size steps of an admission.
TEST(scheduler, preemption_does_not_ping_pong) {
  int64_t num_preemptions = 0;
  for (const char* policy : {"fcfs", "priority"}) {
    for (const int32_t num_blocks : {9, 14, 24, 40}) {
      FakeEngine engine(with_policy(config_of(num_blocks), policy));
      uint64_t next_id = 1;
      for (int32_t round = 0; round < 300; ++round) {
        if (round % 4 == 0) engine.add(next_id++, prompt_of(1 + round % 9, 10 * round), 20, /*priority=*/round % 3);
        engine.step();
      }
      engine.run();
      const auto counters = engine.scheduler.stats().counters;
      CHECK_EQ(counters.num_finished[static_cast<size_t>(FinishReason::kLength)], next_id - 1);
      num_preemptions += counters.num_preemptions;
    }
  }
  CHECK(num_preemptions > 100);
}

TEST(scheduler, without_chunks_a_prompt_is_computed_whole) {
  SchedulerConfig config = config_of(64, 20);
  config.enable_chunked_prefill = false;
  FakeEngine engine(config);
  engine.add(1, prompt_of(12, 0), 4);
  engine.add(2, prompt_of(12, 100), 4);
  CHECK_EQ(engine.step().query_start, (Tokens{0, 12}));
  CHECK_EQ(engine.step().query_start, (Tokens{0, 1, 13}));
  engine.run();
}

TEST(scheduler, without_chunks_a_preempted_request_longer_than_a_step_returns) {
  SchedulerConfig config = config_of(11, 16);
  config.enable_chunked_prefill = false;
  config.enable_prefix_caching = false;
  FakeEngine engine(config);
  engine.add(1, prompt_of(14, 0), 24);
  engine.add(2, prompt_of(14, 100), 24);
  engine.run();
  CHECK(engine.scheduler.stats().counters.num_preemptions > 0);
  for (const uint64_t id : {1, 2}) CHECK_EQ(engine.output(id).size(), 24);
}

// ---- what a policy leaves undone ----

// The pool is idle, but for a reserve that says that online requests will want all of it.
TEST(scheduler, an_offline_request_runs_alone_although_the_reserve_has_no_room_for_it) {
  for (const char* policy : {"echo", "hocket"}) {
    FakeEngine engine(with_policy(config_of(16), policy));
    RequestSpec online;
    online.max_tokens = 10;
    for (uint64_t id = 1; id <= 3; ++id) {
      online.id = id;
      engine.add(online, prompt_of(8, 100 * static_cast<int32_t>(id)));
    }
    engine.run();
    RequestSpec offline;
    offline.id = 9;
    offline.max_tokens = 10;
    offline.request_class = kOfflineClass;
    engine.add(offline, prompt_of(40, 1000));
    CHECK_EQ(engine.step().request_ids, (Ids{9}));
    engine.run();
  }
}

TEST(scheduler, every_policy_schedules_something_as_long_as_there_is_work) {
  for (const char* policy : {"fcfs", "priority", "apt", "bs", "bs_e", "bs_es", "echo", "ellm", "hocket"}) {
    // No time left for anybody: the deadline of the first has passed, and a step takes long.
    FakeEngine engine(with_policy(config_of(9), policy), 5, testing::linear_seconds(1.0, 1.0));
    for (uint64_t id = 1; id <= 4; ++id) {
      RequestSpec spec;
      spec.id = id;
      spec.max_tokens = 12;
      spec.request_class = static_cast<int32_t>(id % 3);
      spec.targets = {.ttft = 0.1, .itl = 0.1};
      engine.add(spec, prompt_of(20, 100 * static_cast<int32_t>(id)));
    }
    engine.run(/*max_steps=*/200);  // FakeEngine checks that no plan is empty
    CHECK_EQ(engine.scheduler.stats().counters.num_finished[2], 4);
  }
}

// ---- abort ----

TEST(scheduler, an_abort_gives_memory_back_at_once) {
  FakeEngine engine(config_of(16));
  engine.add(1, prompt_of(10), 9);
  engine.add(2, prompt_of(10, 100), 9);
  engine.step();
  CHECK(engine.abort(1));
  CHECK(!engine.abort(1));
  CHECK(!engine.abort(77));
  CHECK(engine.abort(2));
  CHECK(!engine.scheduler.has_work());
  const auto stats = engine.scheduler.stats();
  CHECK_EQ(stats.num_free_units + stats.num_cached_units, stats.num_units);
  engine.scheduler.check_invariants();
}

TEST(scheduler, a_waiting_request_can_be_aborted) {
  FakeEngine engine(config_of(16));
  for (uint64_t id = 1; id <= 3; ++id) engine.add(id, prompt_of(4), 1);
  CHECK(engine.abort(2));
  engine.run();
  CHECK(engine.output(2).empty());
  CHECK_EQ(engine.output(3).size(), 1);
}

TEST(scheduler, an_abort_during_the_step_waits_for_its_commit_and_says_nothing_more) {
  FakeEngine engine(config_of(16));
  engine.add(1, prompt_of(10), 9);
  engine.add(2, prompt_of(10, 100), 9);
  engine.step([&] {
    CHECK(engine.abort(1));
    CHECK(!engine.abort(1));
    engine.scheduler.check_invariants();
  });
  CHECK(engine.output(1).empty());
  CHECK_EQ(engine.output(2).size(), 1);
  CHECK_EQ(engine.step().request_ids, (Ids{2}));
  CHECK_EQ(engine.scheduler.stats().counters.num_finished[3], 1);
}

TEST(scheduler, an_id_aborted_during_the_step_can_be_used_again_at_once) {
  Scheduler scheduler(config_of(16));
  const Tokens prompt = prompt_of(3);
  RequestSpec spec;
  spec.id = 1;
  spec.prompt = prompt;
  spec.max_tokens = 5;
  scheduler.add_request(spec);
  scheduler.schedule(0.0);
  CHECK(scheduler.abort(1));
  CHECK_EQ(scheduler.add_request(spec), AddStatus::kOk);
  scheduler.check_invariants();
  CHECK(scheduler.commit(Tokens{4}, 0.0).request_ids.empty());
  CHECK_EQ(scheduler.schedule(1.0).num_seqs(), 1);
  CHECK_EQ(scheduler.commit(Tokens{4}, 1.0).num_output_tokens, (Tokens{1}));
  scheduler.check_invariants();
}

// ---- statistics ----

TEST(scheduler, statistics_count_what_happened) {
  FakeEngine engine(config_of(32));
  RequestSpec offline;
  offline.id = 1;
  offline.max_tokens = 3;
  offline.request_class = 1;
  engine.add(offline, prompt_of(10));
  engine.add(2, prompt_of(6, 100), 2);
  auto stats = engine.scheduler.stats();
  CHECK_EQ(stats.num_waiting, (std::vector<int64_t>{1, 1, 0}));
  engine.step();
  stats = engine.scheduler.stats();
  CHECK_EQ(stats.num_running, (std::vector<int64_t>{1, 1, 0}));
  CHECK_EQ(stats.num_waiting, (std::vector<int64_t>{0, 0, 0}));
  engine.run();
  engine.add(3, prompt_of(10), 1);
  engine.run();
  stats = engine.scheduler.stats();
  CHECK_EQ(stats.counters.num_steps, 4);
  CHECK_EQ(stats.counters.num_prompt_tokens, 26);
  CHECK_EQ(stats.counters.num_output_tokens, 6);
  CHECK_EQ(stats.counters.num_queried_prompt_tokens, 26);
  CHECK_EQ(stats.counters.num_cached_prompt_tokens, 8);
  CHECK_EQ(stats.counters.num_finished, (std::vector<int64_t>{0, 0, 3, 0, 0}));
  CHECK_EQ(stats.num_cached_units, 4 * (3 + 1));  // 12 of 12 and 4 of 7 computed tokens
}

}  // namespace
}  // namespace hocket
