// What is preempted is saved on the host if there is room, and comes back instead of being computed again.

#include <random>

#include "testing.h"
#include "timed_engine.h"

namespace hocket {
namespace {

using testing::Event;
using testing::RequestOf;
using testing::timed_config;
using testing::TimedEngine;

// Blocks of 4 tokens and 2 units; no prefix cache, so that nothing else keeps what is preempted.
SchedulerConfig swap_config(const char* policy, int32_t num_blocks, int64_t num_host_units) {
  SchedulerConfig config = timed_config(policy, num_blocks);
  config.enable_prefix_caching = false;
  config.preemption = "swap";
  config.num_host_units = num_host_units;
  return config;
}

struct Random {
  std::mt19937 source;
  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(source); }
};

// What the host holds, told from the plans: a save brings it there, the next admission takes it away.
struct HostLog {
  std::map<uint64_t, int64_t> units;
  int64_t most = 0;
  int64_t num_saves = 0;
  int64_t num_restores = 0;
  std::map<uint64_t, int64_t> num_computed;  // tokens, over all steps

  void see(const Event& event) {
    for (const HostTransfer& t : event.plan.transfers) {
      if (t.is_to_host) {
        ++num_saves;
        units[t.request_id] = t.num_units;
      } else {
        ++num_restores;
        CHECK(units.contains(t.request_id));
        CHECK(t.num_units <= units.at(t.request_id));
        units.erase(t.request_id);
      }
    }
    for (int32_t s = 0; s < event.plan.num_seqs(); ++s) {
      const uint64_t id = event.plan.request_ids[s];
      units.erase(id);
      num_computed[id] += event.plan.query_start[s + 1] - event.plan.query_start[s];
    }
    int64_t sum = 0;
    for (const auto& [id, count] : units) sum += count;
    most = std::max(most, sum);
  }
};

// Adds requests until 60 have come; runs to the end.
HostLog run_overload(TimedEngine* engine, unsigned seed) {
  Random random{std::mt19937(seed)};
  HostLog log;
  int32_t num_added = 0;
  while (num_added < 60 || engine->engine.scheduler.has_work()) {
    for (; num_added < 60 && engine->num_waiting() < 6; ++num_added) {
      engine->add({.priority = random.between(0, 3),
                   .num_prompt = random.between(4, 60),
                   .request_class = random.between(0, 3) == 0 ? kOfflineClass : kOnlineClass,
                   .max_tokens = random.between(1, 80)});
    }
    log.see(engine->step());
  }
  return log;
}

int64_t num_tokens_computed_twice(const TimedEngine& engine, const HostLog& log) {
  int64_t num_twice = 0;
  for (const auto& [id, request] : engine.engine.requests) {
    num_twice += log.num_computed.at(id) - std::ssize(request.prompt) - std::ssize(request.output) + 1;
  }
  return num_twice;
}

TEST(host_memory, nothing_is_computed_twice_where_the_host_has_room) {
  int64_t num_restores = 0;
  for (const char* policy : {"fcfs", "priority", "apt", "bs", "bs_e", "bs_es", "echo", "ellm", "hocket"}) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      TimedEngine engine(swap_config(policy, /*num_blocks=*/50, /*num_host_units=*/100000));
      const HostLog log = run_overload(&engine, seed);
      CHECK_EQ(num_tokens_computed_twice(engine, log), 0);
      CHECK_EQ(log.num_restores, log.num_saves);
      num_restores += log.num_restores;
    }
  }
  CHECK(num_restores > 100);
}

TEST(host_memory, what_the_host_has_no_room_for_is_computed_again) {
  int64_t num_twice = 0;
  for (const char* policy : {"fcfs", "priority", "apt", "echo", "hocket"}) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      constexpr int64_t kRoom = 40;
      TimedEngine engine(swap_config(policy, /*num_blocks=*/50, kRoom));
      const HostLog log = run_overload(&engine, seed);
      CHECK(log.most <= kRoom);
      num_twice += num_tokens_computed_twice(engine, log);
    }
  }
  CHECK(num_twice > 100);
}

TEST(host_memory, recompute_leaves_the_host_alone) {
  SchedulerConfig config = swap_config("fcfs", 50, 100000);
  config.preemption = "recompute";
  TimedEngine engine(config);
  const HostLog log = run_overload(&engine, 1);
  CHECK_EQ(log.num_saves, 0);
  CHECK(engine.num_preemptions() > 0);
  CHECK(num_tokens_computed_twice(engine, log) > 0);
}

// 16 blocks for two requests that each grow to 12.
TEST(host_memory, a_save_and_a_restore_say_what_moves) {
  TimedEngine engine(swap_config("fcfs", /*num_blocks=*/16, /*num_host_units=*/100));
  engine.add({.num_prompt = 16, .max_tokens = 32});
  const uint64_t second = engine.add({.num_prompt = 16, .max_tokens = 32});
  Event event;
  while (event.preempted.empty()) event = engine.step();
  CHECK_EQ(event.plan.transfers.size(), 1);
  const HostTransfer save = event.plan.transfers[0];
  const auto num_computed = static_cast<int32_t>(16 + engine.engine.output(second).size() - 1);
  CHECK(save.is_to_host && save.kind == CacheKind::kKv);
  CHECK_EQ(save.request_id, second);
  CHECK_EQ(save.begin_token, 0);
  CHECK_EQ(save.end_token, num_computed);
  CHECK_EQ(save.num_units, 2 * ((num_computed - 1) / 4 + 1));
  do {
    event = engine.step();
  } while (!event.served.contains(second));
  CHECK_EQ(event.plan.transfers.size(), 1);
  const HostTransfer back = event.plan.transfers[0];
  CHECK(!back.is_to_host);
  CHECK_EQ(back.end_token, num_computed);
  CHECK_EQ(back.num_units, save.num_units);
  CHECK_EQ(back.row, event.plan.rows[0]);
  CHECK_EQ(event.plan.positions[0], num_computed);  // it goes on where it was
  engine.run();
  CHECK_EQ(engine.engine.num_restored, num_computed);
}

TEST(host_memory, what_the_cache_kept_does_not_come_from_the_host) {
  SchedulerConfig config = swap_config("fcfs", 16, 100);
  config.enable_prefix_caching = true;
  TimedEngine engine(config);
  const uint64_t first = engine.add({.num_prompt = 16, .max_tokens = 32});
  const uint64_t second = engine.add({.num_prompt = 15, .max_tokens = 32});
  while (engine.step().preempted.empty()) {
  }
  engine.engine.abort(first);
  const Event event = engine.step();
  const auto num_computed = static_cast<int32_t>(15 + engine.engine.output(second).size() - 2);
  const HostTransfer back = event.plan.transfers.at(0);
  CHECK(back.begin_token > 0);
  CHECK_EQ(back.begin_token % 4, 0);
  CHECK_EQ(back.end_token, num_computed);
  CHECK_EQ(back.num_units, 2 * ((num_computed - 1) / 4 + 1 - back.begin_token / 4));
  engine.run();
}

// Half of it as hidden states, which are projected on their way back.
TEST(host_memory, restoring_from_hidden_states_takes_half_of_the_host) {
  SchedulerConfig config = swap_config("fcfs", 16, 100);
  config.preemption = "restore";
  config.hidden_units_per_group = 1;
  TimedEngine engine(config);
  engine.add({.num_prompt = 16, .max_tokens = 32});
  engine.add({.num_prompt = 16, .max_tokens = 32});
  Event event;
  while (event.preempted.empty()) event = engine.step();
  const HostTransfer save = event.plan.transfers.at(0);
  CHECK(save.kind == CacheKind::kHidden);
  CHECK_EQ(save.num_units, (save.end_token - 1) / 4 + 1);
  engine.run();
  CHECK_EQ(engine.engine.num_restored, save.end_token);
}

TEST(host_memory, an_aborted_request_leaves_the_host) {
  // Each save takes more than half of the host.
  TimedEngine engine(swap_config("fcfs", /*num_blocks=*/16, /*num_host_units=*/22));
  engine.add({.num_prompt = 16, .max_tokens = 32});
  for (int32_t i = 0; i < 3; ++i) {
    const uint64_t id = engine.add({.num_prompt = 16, .max_tokens = 32});
    Event event;
    while (event.preempted.empty() && !engine.has_ended(1)) event = engine.step();
    if (engine.has_ended(1)) break;
    CHECK_EQ(event.plan.transfers.size(), 1);
    CHECK(engine.engine.abort(id));
    engine.engine.scheduler.check_invariants();
  }
  engine.run();
}

}  // namespace
}  // namespace hocket
