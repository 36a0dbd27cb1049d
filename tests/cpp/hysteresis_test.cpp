// Preemption is no ping-pong: what runs is worth what building it again would cost, and gives way seldom.

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "testing.h"
#include "timed_engine.h"

namespace hocket {
namespace {

using testing::Event;
using testing::linear_seconds;
using testing::RequestOf;
using testing::timed_config;
using testing::TimedEngine;

constexpr const char* kPolicies[] = {"fcfs", "priority", "apt", "bs", "bs_e", "bs_es", "echo", "ellm", "hocket"};

struct Random {
  std::mt19937 source;
  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(source); }
};

// Each of the two grows to 1050 of 1200 tokens.
TEST(hysteresis, two_equal_requests_that_do_not_fit_together_do_not_take_turns) {
  for (const char* policy : {"apt", "hocket"}) {
    for (const bool is_known : {true, false}) {
      for (const bool has_cache : {true, false}) {
        SchedulerConfig config = timed_config(policy, /*num_blocks=*/300);
        config.max_model_len = 1200;
        config.enable_prefix_caching = has_cache;
        TimedEngine engine(config, is_known ? linear_seconds(0.01, 0.001) : Estimates());
        for (int32_t i = 0; i < 2; ++i) engine.add({.num_prompt = 50, .max_tokens = 1000});
        for (int32_t i = 0; i < 1000; ++i) engine.step();
        CHECK_EQ(engine.num_preemptions(), 1);
        engine.run();
        CHECK_EQ(engine.num_preemptions(), 1);
      }
    }
  }
}

// The one that had to wait comes back once it starves, and is not sent away again.
TEST(hysteresis, starving_in_turn_is_no_ping_pong_either) {
  for (const char* policy : {"apt", "hocket"}) {
    SchedulerConfig config = timed_config(policy, /*num_blocks=*/300);
    config.max_model_len = 1200;
    config.max_wait_ms = 500;  // some 40 steps
    TimedEngine engine(config);
    for (int32_t i = 0; i < 2; ++i) engine.add({.num_prompt = 50, .max_tokens = 1000});
    engine.run();
    CHECK(engine.num_preemptions() <= 4);
  }
}

// More than there is memory for, at any time; a quarter of it offline, in three priorities, so that everybody has
// somebody to displace.
double preemptions_per_request(const char* policy, unsigned seed) {
  Random random{std::mt19937(seed)};
  SchedulerConfig config = timed_config(policy, /*num_blocks=*/60 + 40 * (static_cast<int32_t>(seed) % 2), 32);
  config.enable_prefix_caching = seed % 3 != 0;
  config.hidden_units_per_group = seed % 4 == 1;
  TimedEngine engine(config);
  for (int32_t i = 0; i < 500; ++i) {
    while (engine.num_waiting() < 10) {
      engine.add({.priority = random.between(0, 2),
                  .num_prompt = random.between(4, 60),
                  .request_class = random.between(0, 3) == 0 ? kOfflineClass : kOnlineClass,
                  .ttft_target = 2.0,
                  .itl_target = 0.1,
                  .max_tokens = random.between(1, 60)});
    }
    engine.step();
  }
  const auto counters = engine.engine.scheduler.stats().counters;
  return static_cast<double>(counters.num_preemptions) / static_cast<double>(counters.num_finished[2]);
}

TEST(hysteresis, preemptions_per_request_are_few_in_overload) {
  for (const char* policy : kPolicies) {
    double sum = 0.0;
    for (unsigned seed = 0; seed < 6; ++seed) sum += preemptions_per_request(policy, seed);
    CHECK(sum / 6 < 1.0);
  }
}

// An answer that takes most of the memory, and others that come all the time and take little each, but more than is
// left. With targets the many are worth more.
TEST(hysteresis, who_is_read_gives_no_place_up_to_many_that_are_shorter) {
  for (const double itl_target : {testing::kNoTarget, 10.0}) {
    TimedEngine engine(timed_config("hocket", /*num_blocks=*/95), linear_seconds(0.010, 0.00001));
    const uint64_t read = engine.add({.num_prompt = 300, .itl_target = itl_target, .max_tokens = 60});
    for (int32_t i = 0; i < 10; ++i) engine.step();
    bool is_displaced = false;
    for (int32_t i = 0; i < 15; ++i) {
      while (engine.num_waiting() < 8) engine.add({.num_prompt = 40, .itl_target = itl_target, .max_tokens = 20});
      is_displaced |= engine.step().preempted.contains(read);
    }
    CHECK_EQ(is_displaced, itl_target != testing::kNoTarget);
  }
}

// Equals in a closed loop, memory for as many whole ones as there are rows: rows are what is short, and nobody can use
// another one's.
TEST(hysteresis, where_rows_are_short_equals_are_served_whole_in_order_of_arrival) {
  for (const char* policy : kPolicies) {
    for (const int32_t num_rows : {1, 2, 4}) {
      for (const int32_t num_tokens : {100, 500}) {
        TimedEngine engine(timed_config(policy, /*num_blocks=*/129 * num_rows, num_rows));
        std::vector<uint64_t> sampled_first;
        std::set<uint64_t> seen;
        for (int32_t i = 0; i < 1500; ++i) {
          while (engine.num_waiting() < 5) engine.add({.num_prompt = 8, .max_tokens = num_tokens});
          for (const uint64_t id : engine.step().sampled) {
            if (seen.insert(id).second) sampled_first.push_back(id);
          }
        }
        CHECK_EQ(engine.num_preemptions(), 0);
        CHECK(std::ranges::is_sorted(sampled_first));
      }
    }
  }
}

}  // namespace
}  // namespace hocket
