// Random histories in tiny pools: whatever happens, every accepted request ends exactly once with the output it would
// have had alone, and every invariant holds after every call.

#include <random>

#include "random_history.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::History;

struct Random {
  std::mt19937 source;

  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(source); }
  bool chance(int32_t percent) { return between(1, 100) <= percent; }
};

TEST(scheduler_random, every_history_ends_well) {
  int64_t num_preemptions = 0;
  int64_t num_evictions = 0;
  int64_t num_hits = 0;
  int64_t num_hidden = 0;
  int64_t num_uncached = 0;
  int64_t num_restored = 0;
  int64_t num_projected = 0;
  int64_t num_rounded = 0;
  int64_t num_in_int8 = 0;
  int64_t num_loaded = 0;
  int64_t num_step_loaded = 0;
  int64_t num_fetched = 0;
  int64_t num_lost = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_announced = 0;
  int64_t num_guessed = 0;
  int64_t num_right_guesses = 0;
  int64_t num_forced = 0;
  int64_t num_asked = 0;
  int64_t num_suggested = 0;
  for (unsigned seed = 0; seed < 1200; ++seed) {
    try {
      History<Random> history(Random{std::mt19937(seed)});
      for (int32_t i = 0; i < 120; ++i) history.act();
      history.engine.run();
      history.check_end();
      const SchedulerStats stats = history.engine.scheduler.stats();
      num_preemptions += stats.counters.num_preemptions;
      num_evictions += stats.num_evicted_blocks;
      num_hits += stats.counters.num_cached_prompt_tokens;
      num_hidden += history.engine.num_hidden;
      num_uncached += history.engine.num_uncached;
      num_restored += history.engine.num_restored;
      num_projected += history.engine.num_projected;
      num_rounded += history.engine.num_rounded;
      num_in_int8 += history.engine.num_in_int8;
      num_loaded += history.engine.num_loaded;
      num_step_loaded += history.engine.num_step_loaded;
      num_fetched += history.engine.num_fetched;
      num_lost += history.engine.num_lost;
      num_draft_tokens += history.engine.num_draft_tokens;
      num_announced += stats.counters.num_announced_requests;
      num_guessed += history.engine.num_guessed;
      num_right_guesses += stats.counters.num_right_guesses;
      num_forced += history.num_forced;
      num_asked += history.num_asked;
      num_suggested += history.num_suggested;
    } catch (const std::exception& error) {
      throw testing::Failure("seed " + std::to_string(seed) + ": " + error.what());
    }
  }
  // The histories must have met what they are for.
  CHECK(num_preemptions > 200);
  CHECK(num_evictions > 3000);
  CHECK(num_hits > 500);
  CHECK(num_hidden > 100);
  CHECK(num_uncached > 20);
  CHECK(num_restored > 100);
  CHECK(num_projected > 20);
  CHECK(num_rounded > 100);
  CHECK(num_in_int8 > 1000);
  CHECK(num_loaded - num_step_loaded > 100);
  CHECK(num_step_loaded > 100);
  CHECK(num_fetched > 80);
  CHECK(num_lost > 10);
  CHECK(num_draft_tokens > 300);
  CHECK(num_announced > 30);
  CHECK(num_guessed - num_right_guesses > 100);
  CHECK(num_right_guesses > 300);
  CHECK(num_forced > 1000);
  CHECK(num_suggested > 1000);
  CHECK(num_asked > 30);
}

}  // namespace
}  // namespace hocket
