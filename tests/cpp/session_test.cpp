// Sessions: an announced request finds its cache on the device, and what is announced is in nobody's way.

#include "fake_engine.h"
#include "session_table.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::FakeEngine;
using testing::Tokens;

// Blocks of 4 tokens and 2 units.
SchedulerConfig session_config(int32_t num_blocks, int32_t num_host_blocks = 0) {
  SchedulerConfig config;
  config.num_units = 2 * num_blocks;
  config.num_layers = 4;
  config.block_size = 4;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 4 * num_blocks;
  config.num_host_blocks = num_host_blocks;
  return config;
}

Tokens prompt(int32_t first, int32_t num) {
  Tokens tokens(num);
  for (int32_t i = 0; i < num; ++i) tokens[i] = first + i;
  return tokens;
}

void flood(FakeEngine* engine, int32_t num_tokens, uint64_t id) {
  for (uint64_t i = 0; i < 3; ++i) {
    CHECK_EQ(engine->add(id + i, prompt(100000 * static_cast<int32_t>(id + i), num_tokens), 1), AddStatus::kOk);
    engine->run();
  }
}

SchedulerCounters counters(const FakeEngine& engine) { return engine.scheduler.stats().counters; }

TEST(session, an_unknown_session_stays_unknown) {
  FakeEngine engine(session_config(20));
  CHECK(!engine.advise("s", AdvisoryEvent::kTyping, 10, prompt(1, 12)).is_known);
  CHECK_EQ(engine.scheduler.stats().num_sessions, 0);
  CHECK(engine.step().empty());
}

TEST(session, nobody_finds_anothers_session) {
  FakeEngine engine(session_config(20));
  engine.add(1, "s", prompt(1, 10), 1);
  engine.run();
  CHECK(engine.advise("s", AdvisoryEvent::kQuery).is_known);
  CHECK(!engine.advise("s", AdvisoryEvent::kQuery, 0, {}, "salt").is_known);
  CHECK(!engine.scheduler.advise({{"tenant", "", "s"}, AdvisoryEvent::kQuery, 0, {}}, 0).is_known);
}

TEST(session, a_lease_is_evicted_last_and_ends_in_time) {
  FakeEngine engine(session_config(30));
  engine.add(1, "s", prompt(1, 41), 1);
  engine.run();
  const SessionReport report = engine.advise("s", AdvisoryEvent::kTyping, 50.0);
  CHECK_EQ(report.action, SessionAction::kPin);
  CHECK_EQ(report.num_tokens, 41);
  CHECK_EQ(report.tier_tokens[0], 40);
  CHECK_EQ(report.lease_seconds, 50.0);
  flood(&engine, 60, 10);  // each takes 15 of the 20 blocks that are left
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 40);
  engine.now += 100.0;
  flood(&engine, 60, 20);
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 0);
  CHECK_EQ(engine.scheduler.stats().num_leases, 0);
}

TEST(session, leased_memory_is_taken_back_at_once) {
  FakeEngine engine(session_config(30));
  engine.add(1, "s", prompt(1, 61), 1);
  engine.run();
  engine.advise("s", AdvisoryEvent::kTyping, 1e6);
  engine.add(2, prompt(50000, 80), 1);  // 20 blocks and one for the next token
  engine.step();
  CHECK_EQ(engine.output(2).size(), 0);
  engine.step();
  CHECK_EQ(engine.output(2).size(), 1);
  // Its last blocks went first.
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 40);
  engine.scheduler.check_invariants();
}

TEST(session, the_smallest_session_is_taken_back_first_whoever_was_announced_first) {
  FakeEngine engine(session_config(30));
  engine.add(1, "large", prompt(1, 41), 1);
  engine.add(2, "small", prompt(1000, 17), 1);
  engine.run();
  engine.advise("large", AdvisoryEvent::kTyping, 1e6);
  engine.advise("small", AdvisoryEvent::kTyping, 1e6);
  const auto num_left = [&](const char* session) {
    return engine.advise(session, AdvisoryEvent::kQuery).tier_tokens[0];
  };
  engine.add(3, prompt(50000, 68), 1);  // 17 blocks; 16 are free
  engine.run();
  CHECK_EQ(num_left("small"), 12);
  CHECK_EQ(num_left("large"), 40);
  engine.add(4, prompt(60000, 84), 1);  // 21 blocks; 17 are the last request's
  engine.run();
  CHECK_EQ(num_left("small"), 0);
  CHECK_EQ(num_left("large"), 36);
}

TEST(session, an_announcement_brings_the_cache_back_from_the_host) {
  FakeEngine engine(session_config(20, 200));
  engine.add(1, "s", prompt(1, 41), 1);
  engine.run();
  flood(&engine, 70, 10);
  engine.settle();
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 0);
  const SessionReport report = engine.advise("s", AdvisoryEvent::kTyping);
  CHECK_EQ(report.action, SessionAction::kPrefetch);
  CHECK_EQ(report.tier_tokens[1], 40);
  engine.settle();
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 40);
  Tokens next = prompt(1, 41);
  next.insert(next.end(), {7, 7, 7, 7});
  engine.add(2, "s", next, 1);
  engine.run();
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 40);
  CHECK_EQ(counters(engine).num_announced_requests, 1);
  CHECK_EQ(counters(engine).num_wasted_tokens, 0);
  CHECK_EQ(counters(engine).num_hit_tokens[0], 40);
  CHECK_EQ(engine.scheduler.stats().num_leases, 0);
}

TEST(session, a_draft_is_computed_ahead_and_a_changed_one_reuses_what_is_common) {
  FakeEngine engine(session_config(60));
  engine.add(1, "s", prompt(1, 9), 1);
  engine.run();
  Tokens draft = prompt(1, 9);
  for (int32_t i = 0; i < 31; ++i) draft.push_back(600 + i);
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kTyping, 100, draft).action, SessionAction::kDraftPrefill);
  for (int32_t i = 0; i < 5; ++i) engine.step();
  CHECK_EQ(engine.num_draft_tokens, 32);  // two blocks were cached
  for (size_t i = 20; i < draft.size(); ++i) draft[i] += 1000;
  engine.advise("s", AdvisoryEvent::kTyping, 100, draft);
  for (int32_t i = 0; i < 5; ++i) engine.step();
  CHECK_EQ(engine.num_draft_tokens, 32 + 20);
  draft.push_back(3);
  engine.add(2, "s", draft, 1);
  engine.run();
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 40);
}

TEST(session, a_draft_takes_what_the_others_leave_of_a_step) {
  FakeEngine engine(session_config(100));
  engine.add(1, "s", prompt(1, 9), 1);
  engine.run();
  engine.add(2, prompt(5000, 64), 30);
  engine.add(3, prompt(6000, 64), 30);
  engine.advise("s", AdvisoryEvent::kTyping, 100, prompt(1, 200));
  const BatchPlan plan = engine.step();
  CHECK(std::ranges::none_of(plan.request_ids, Scheduler::is_draft_id));
  engine.step();
  const BatchPlan mixed = engine.step();
  CHECK(std::ranges::any_of(mixed.request_ids, Scheduler::is_draft_id));
  CHECK(mixed.num_seqs() == 3);
  engine.run();
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 200);
}

TEST(session, a_cancelled_announcement_leaves_nothing_behind) {
  FakeEngine engine(session_config(60));
  engine.add(1, "s", prompt(1, 9), 1);
  engine.run();
  engine.advise("s", AdvisoryEvent::kTyping, 100, prompt(1, 150));
  engine.step([&] {
    CHECK_EQ(engine.advise("s", AdvisoryEvent::kCancel).action, SessionAction::kRelease);
    engine.scheduler.check_invariants();
  });
  CHECK(engine.step().empty());
  CHECK(engine.advise("s", AdvisoryEvent::kQuery).is_known);
  CHECK(engine.advise("s", AdvisoryEvent::kQuery).lease_seconds < 0);
  CHECK(counters(engine).num_wasted_tokens > 0 || counters(engine).num_prepared_tokens > 0);
  engine.advise("s", AdvisoryEvent::kRelease);
  CHECK(!engine.advise("s", AdvisoryEvent::kQuery).is_known);
  engine.scheduler.check_invariants();
}

TEST(session, a_draft_that_no_request_could_have_is_refused) {
  FakeEngine engine(session_config(10));
  engine.add(1, "s", prompt(1, 9), 1);
  engine.run();
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kTyping, 100, prompt(1, 40)).action, SessionAction::kRefused);
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kTyping, 100, {1, -1}).action, SessionAction::kRefused);
  CHECK_EQ(engine.scheduler.stats().num_leases, 0);
}

TEST(session, the_table_forgets_the_session_used_least_recently) {
  SessionTable table(2);
  const SessionId a = table.add({"t", "", "a"});
  const SessionId b = table.add({"t", "", "b"});
  CHECK_EQ(table.find({"t", "", "a"}), a);
  CHECK_EQ(table.least_recent_if_full(), b);
  table.check_invariants();
}

}  // namespace
}  // namespace hocket
