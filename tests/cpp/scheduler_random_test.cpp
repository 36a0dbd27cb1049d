// Random histories in tiny pools: whatever happens, every accepted request ends exactly once with the output it would
// have had alone, and every invariant holds after every call.

#include <random>

#include "fake_engine.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::FakeEngine;
using testing::Tokens;

struct Random {
  std::mt19937 source;

  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(source); }
  bool chance(int32_t percent) { return between(1, 100) <= percent; }
};

SchedulerConfig random_config(Random* random) {
  SchedulerConfig config;
  config.num_layers = random->between(1, 6);
  config.layers_per_unit = random->between(1, 4);
  config.block_size = random->between(1, 5);
  config.num_units = config.units_per_block() * random->between(1, 20) + random->between(0, 1);
  config.max_num_seqs = random->between(1, 6);
  config.max_num_batched_tokens = random->between(1, 24);
  config.max_model_len = random->between(2, 48);
  config.max_num_waiting = random->between(1, 12);
  config.policy = random->chance(50) ? "fcfs" : "priority";
  config.enable_prefix_caching = random->chance(75);
  config.enable_chunked_prefill = random->chance(70);
  return config;
}

struct History {
  Random random;
  SchedulerConfig config;
  FakeEngine engine;
  uint64_t next_id = 0;
  int64_t num_accepted = 0;

  explicit History(unsigned seed) : random{std::mt19937(seed)}, config(random_config(&random)), engine(config, 3) {}

  void add() {
    RequestSpec spec;
    spec.id = next_id++;
    spec.max_tokens = random.between(1, 20);
    spec.priority = random.between(0, 2);
    spec.request_class = random.between(0, 2);
    spec.arrival_time = engine.now - random.between(0, 3);
    Tokens prompt(random.between(1, 20));
    for (int32_t& token : prompt) token = random.between(0, 1);  // so that prompts share prefixes
    const Tokens stops = random.chance(30) ? Tokens{2} : Tokens{};
    num_accepted += engine.add(spec, prompt, random.chance(20) ? "other" : "", stops) == AddStatus::kOk;
  }

  void abort() {
    if (next_id > 0) engine.abort(random.between(0, static_cast<int32_t>(next_id) - 1));
  }

  void step() {
    engine.step([&] {
      if (random.chance(20)) abort();
      if (random.chance(10)) add();
      engine.scheduler.check_invariants();
    });
  }

  void act() {
    const int32_t choice = random.between(1, 100);
    if (choice <= 30) {
      add();
    } else if (choice <= 35) {
      abort();
    } else if (choice <= 36) {
      engine.scheduler.reset_prefix_cache();
    } else {
      step();
    }
    engine.scheduler.check_invariants();
  }

  void check_end() {
    const SchedulerStats stats = engine.scheduler.stats();
    int64_t num_finished = 0;
    for (const int64_t count : stats.counters.num_finished) num_finished += count;
    CHECK_EQ(num_finished, num_accepted);
    for (const auto& [id, request] : engine.requests) CHECK(request.reason != FinishReason::kNone);
    CHECK_EQ(stats.num_free_units + stats.num_cached_units, stats.num_units);
  }
};

TEST(scheduler_random, every_history_ends_well) {
  int64_t num_preemptions = 0;
  int64_t num_evictions = 0;
  int64_t num_hits = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    try {
      History history(seed);
      for (int32_t i = 0; i < 120; ++i) history.act();
      history.engine.run();
      history.check_end();
      const SchedulerStats stats = history.engine.scheduler.stats();
      num_preemptions += stats.counters.num_preemptions;
      num_evictions += stats.num_evicted_blocks;
      num_hits += stats.counters.num_cached_prompt_tokens;
    } catch (const std::exception& error) {
      throw testing::Failure("seed " + std::to_string(seed) + ": " + error.what());
    }
  }
  // The histories must have met what they are for.
  CHECK(num_preemptions > 200);
  CHECK(num_evictions > 3000);
  CHECK(num_hits > 500);
}

}  // namespace
}  // namespace hocket
