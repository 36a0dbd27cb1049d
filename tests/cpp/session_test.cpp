// Sessions: an announced request finds its cache on the device, and what is announced is in nobody's way.

#include <random>

#include "fake_engine.h"
#include "sessions/session_table.h"
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
  const SessionState report = engine.advise("s", AdvisoryEvent::kTyping, 50.0);
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
  const SessionState report = engine.advise("s", AdvisoryEvent::kTyping);
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
  CHECK_EQ(table.least_recent_if_full({"t", "", "c"}), b);
  table.check_invariants();
}

SessionId add_making_room(SessionTable* table, const SessionName& name) {
  if (const SessionId gone = table->least_recent_if_full(name); gone != kNone) table->remove(gone);
  const SessionId id = table->add(name);
  table->check_invariants();
  return id;
}

TEST(session, a_tenant_with_many_sessions_drives_out_its_own) {
  SessionTable table(64);
  const SessionId alice = add_making_room(&table, {"alice", "", "a"});
  for (int32_t i = 0; i < 200; ++i) add_making_room(&table, {"bob", "", std::to_string(i)});
  CHECK_EQ(table.size(), 64);
  CHECK_EQ(table.find({"alice", "", "a"}), alice);
  CHECK_EQ(table.find({"bob", "", "136"}), kNone);  // 63 are left of his
  CHECK(table.find({"bob", "", "137"}) != kNone);
}

TEST(session, a_tenant_over_its_share_gives_way_first_until_shares_are_equal) {
  SessionTable table(12);
  for (int32_t i = 0; i < 12; ++i) add_making_room(&table, {"bob", "", std::to_string(i)});
  for (int32_t i = 0; i < 20; ++i) {
    add_making_room(&table, {"alice", "", std::to_string(i)});
    add_making_room(&table, {"carol", "", std::to_string(i)});
  }
  for (const std::string_view tenant : {"alice", "bob", "carol"}) {
    int32_t num_known = 0;
    for (int32_t i = 0; i < 20; ++i) num_known += table.find({tenant, "", std::to_string(i)}) != kNone;
    CHECK_EQ(num_known, 4);
  }
  CHECK(table.find({"bob", "", "7"}) == kNone && table.find({"bob", "", "8"}) != kNone);
}

// Against a list of (tenant, last use) per session.
TEST(session, the_table_forgets_as_a_plain_list_says) {
  std::mt19937 random(5);
  for (int32_t round = 0; round < 30; ++round) {
    const int32_t max_size = 1 + static_cast<int32_t>(random() % 9);
    SessionTable table(max_size);
    std::vector<std::pair<std::string, std::string>> known;  // in the order of use
    const auto count = [&](const std::string& tenant) {
      return std::ranges::count_if(known, [&](const auto& session) { return session.first == tenant; });
    };
    for (int32_t i = 0; i < 200; ++i) {
      const std::pair name{std::string(1, static_cast<char>('a' + random() % 4)), std::to_string(random() % 6)};
      const auto place = std::ranges::find(known, name);
      CHECK_EQ(table.find({name.first, "", name.second}) != kNone, place != known.end());
      if (place != known.end()) {
        known.erase(place);
      } else {
        if (std::ssize(known) == max_size) {
          int64_t most = 0;
          for (const auto& session : known) most = std::max<int64_t>(most, count(session.first));
          const bool is_own = count(name.first) == most;
          known.erase(std::ranges::find_if(known, [&](const auto& session) {
            return is_own ? session.first == name.first : count(session.first) == most;
          }));
        }
        add_making_room(&table, {name.first, "", name.second});
      }
      known.push_back(name);
      table.check_invariants();
    }
  }
}

TEST(session, thousands_of_anothers_sessions_leave_a_tenants_announcement_alone) {
  SchedulerConfig config = session_config(60);
  config.max_num_sessions = 16;
  FakeEngine engine(config);
  const auto add = [&](uint64_t id, const std::string& tenant, const std::string& session) {
    RequestSpec spec;
    spec.id = id;
    spec.max_tokens = 1;
    spec.arrival_time = engine.now;
    spec.tenant = tenant;
    spec.session_id = session;
    CHECK_EQ(engine.add(spec, prompt(static_cast<int32_t>(id), 9)), AddStatus::kOk);
    engine.run();
  };
  add(1, "alice", "s");
  CHECK(engine.scheduler.advise({{"alice", "", "s"}, AdvisoryEvent::kTyping, 1e6, {}}, engine.now).is_known);
  for (uint64_t i = 0; i < 100; ++i) add(2 + i, "bob", std::to_string(i));
  CHECK(engine.scheduler.advise({{"alice", "", "s"}, AdvisoryEvent::kQuery, 0, {}}, engine.now).is_known);
  CHECK_EQ(engine.scheduler.stats().num_leases, 1);
  CHECK_EQ(engine.scheduler.stats().num_sessions, 16);
}

SessionName named(const char* id) { return {"", "", id}; }

TEST(session, a_session_of_an_earlier_life_finds_its_cache_on_the_disk) {
  SchedulerConfig config = session_config(20, 30);
  config.enable_disk = true;
  FakeEngine before(config);
  before.add(1, "s", prompt(1, 41), 1);
  before.run();
  before.settle();
  FakeEngine engine(config);
  engine.take_disk(before);
  CHECK(!engine.advise("s", AdvisoryEvent::kTyping).is_known);
  CHECK(engine.scheduler.remember_session(named("s"), before.scheduler.session_tokens(named("s"))));
  const SessionState report = engine.advise("s", AdvisoryEvent::kTyping);
  CHECK_EQ(report.action, SessionAction::kPrefetch);
  CHECK_EQ(report.num_tokens, 41);
  CHECK_EQ(report.tier_tokens[2], 40);
  engine.settle();
  CHECK_EQ(engine.advise("s", AdvisoryEvent::kQuery).tier_tokens[0], 40);
  Tokens next = prompt(1, 41);
  next.insert(next.end(), {7, 7, 7, 7});
  engine.add(2, "s", next, 1);
  engine.run();
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 40);
  CHECK_EQ(engine.num_fetched, 10);
  CHECK_EQ(engine.scheduler.session_tokens(named("s")).size(), 45);
}

TEST(session, what_no_request_could_have_computed_is_not_remembered) {
  SchedulerConfig config = session_config(10);
  const auto remembers = [&](const char* id, const Tokens& tokens) {
    FakeEngine engine(config);
    const bool is_known = engine.scheduler.remember_session(named(id), tokens);
    CHECK_EQ(engine.scheduler.stats().num_sessions, int64_t{is_known});
    engine.scheduler.check_invariants();
    return is_known;
  };
  CHECK(!remembers("", prompt(1, 9)));
  CHECK(!remembers("s", {}));
  CHECK(!remembers("s", {1, -1, 2}));
  CHECK(!remembers("s", prompt(1, 40)));
  CHECK(remembers("s", prompt(1, 39)));
  config.max_model_len = 80;  // the pool has 40
  CHECK(!remembers("s", prompt(1, 40)));
  CHECK(remembers("s", prompt(1, 39)));
}

TEST(session, a_known_session_is_not_remembered_anew) {
  FakeEngine engine(session_config(20));
  engine.add(1, "s", prompt(1, 9), 1);
  engine.run();
  CHECK(!engine.scheduler.remember_session(named("s"), prompt(500, 20)));
  CHECK_EQ(engine.scheduler.session_tokens(named("s")).size(), 9);
}

TEST(session, reading_a_sessions_tokens_is_no_use_of_it) {
  SchedulerConfig config = session_config(20);
  config.max_num_sessions = 2;
  FakeEngine engine(config);
  engine.add(1, "old", prompt(1, 9), 1);
  engine.run();
  engine.add(2, "new", prompt(100, 10), 1);
  engine.run();
  CHECK_EQ(engine.scheduler.session_tokens(named("old")).size(), 9);
  CHECK(engine.scheduler.session_tokens({"tenant", "", "old"}).empty());
  engine.add(3, "third", prompt(200, 9), 1);
  CHECK(engine.scheduler.session_tokens(named("third")).empty());  // none of its requests has ended
  engine.run();
  CHECK(engine.scheduler.session_tokens(named("old")).empty());
  CHECK_EQ(engine.scheduler.session_tokens(named("new")).size(), 10);
}

TEST(session, remembered_sessions_follow_the_tables_rule) {
  SchedulerConfig config = session_config(20);
  config.max_num_sessions = 4;
  FakeEngine engine(config);
  CHECK(engine.scheduler.remember_session({"alice", "", "s"}, prompt(1, 9)));
  engine.scheduler.advise({{"alice", "", "s"}, AdvisoryEvent::kTyping, 1e6, {}}, engine.now);
  for (int32_t i = 0; i < 10; ++i) {
    CHECK(engine.scheduler.remember_session({"bob", "", std::to_string(i)}, prompt(100 * i, 9)));
    engine.scheduler.check_invariants();
  }
  CHECK_EQ(engine.scheduler.stats().num_sessions, 4);
  CHECK_EQ(engine.scheduler.stats().num_leases, 1);
  CHECK(!engine.scheduler.session_tokens({"alice", "", "s"}).empty());
  CHECK(engine.scheduler.session_tokens({"bob", "", "6"}).empty());
  CHECK(!engine.scheduler.session_tokens({"bob", "", "7"}).empty());
}

}  // namespace
}  // namespace hocket
