// Offline work beside online requests: it takes what they leave, gives way at once, and always ends.

#include <cmath>
#include <random>

#include "testing.h"
#include "timed_engine.h"

namespace hocket {
namespace {

using testing::Event;
using testing::RequestOf;
using testing::timed_config;
using testing::TimedEngine;
using Ids = std::vector<uint64_t>;

constexpr const char* kPolicies[] = {"bs", "bs_e", "bs_es", "echo", "hocket"};

struct Random {
  std::mt19937 source;
  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(source); }
  bool chance(int32_t percent) { return between(1, 100) <= percent; }
};

RequestOf offline(RequestOf request) {
  request.request_class = kOfflineClass;
  return request;
}

TEST(offline_work, an_arriving_online_request_displaces_it_for_memory) {
  for (const char* policy : kPolicies) {
    TimedEngine engine(timed_config(policy, /*num_blocks=*/30));
    const uint64_t bulk = engine.add(offline({.num_prompt = 70, .max_tokens = 20}));
    engine.step();
    const uint64_t chat = engine.add({.num_prompt = 80, .max_tokens = 5});
    const Event event = engine.step();
    CHECK_EQ(event.preempted, (std::set<uint64_t>{bulk}));
    CHECK(event.served.contains(chat));
    engine.run();
    CHECK_EQ(engine.num_preemptions(), 1);
  }
}

TEST(offline_work, an_arriving_online_request_displaces_it_for_a_row) {
  for (const char* policy : kPolicies) {
    TimedEngine engine(timed_config(policy, 400, /*num_rows=*/2));
    engine.add(offline({.num_prompt = 8, .max_tokens = 20}));
    const uint64_t later = engine.add(offline({.num_prompt = 8, .max_tokens = 20}));
    engine.step();
    CHECK_EQ(engine.step().served.size(), 2);
    const uint64_t chat = engine.add({.num_prompt = 8, .max_tokens = 5});
    const Event event = engine.step();
    CHECK_EQ(event.preempted, (std::set<uint64_t>{later}));
    CHECK(event.served.contains(chat));
    engine.run();
  }
}

TEST(offline_work, it_waits_while_online_requests_hold_the_memory) {
  for (const char* policy : kPolicies) {
    TimedEngine engine(timed_config(policy, /*num_blocks=*/30));
    const uint64_t chat = engine.add({.num_prompt = 80, .max_tokens = 10});
    engine.step();
    const uint64_t bulk = engine.add(offline({.num_prompt = 70, .max_tokens = 20}));
    while (!engine.has_ended(chat)) {
      const Event event = engine.step();
      CHECK(!event.served.contains(bulk));
      CHECK(event.preempted.empty());
    }
    CHECK(engine.step().served.contains(bulk));
  }
}

// Whatever offline work there is, online requests that fit the pool together lose nothing to it.
TEST(offline_work, it_never_displaces_an_online_request) {
  int64_t num_preemptions = 0;
  for (const char* policy : kPolicies) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      Random random{std::mt19937(seed)};
      SchedulerConfig config = timed_config(policy, /*num_blocks=*/100, /*num_rows=*/12);
      config.enable_prefix_caching = random.chance(50);
      TimedEngine engine(config);
      for (int32_t i = 0; i < 300; ++i) {
        const auto stats = engine.engine.scheduler.stats();
        const bool has_room = stats.num_running[0] + stats.num_waiting[0] < 5;  // of at most 12 blocks each
        const RequestOf request = {.num_prompt = random.between(4, 24), .max_tokens = random.between(1, 20)};
        if (has_room && random.chance(40)) engine.add(request);
        if (random.chance(30)) engine.add(offline({.num_prompt = random.between(4, 150), .max_tokens = 30}));
        if (!engine.engine.scheduler.has_work()) continue;
        for (const uint64_t id : engine.step().preempted) CHECK(!engine.is_online(id));
      }
      num_preemptions += engine.num_preemptions();
    }
  }
  CHECK(num_preemptions > 50);
}

TEST(offline_work, a_pool_of_it_ends_when_no_online_request_comes) {
  for (const char* policy : kPolicies) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      Random random{std::mt19937(seed)};
      TimedEngine engine(timed_config(policy, /*num_blocks=*/random.between(45, 120)));
      // Online use that is over leaves a reserve behind.
      for (int32_t i = 0; i < 5; ++i) engine.add({.num_prompt = 30, .max_tokens = 30});
      engine.run();
      for (int32_t i = 0; i < 40; ++i) {
        const int32_t family = 100000 * random.between(1, 3);
        engine.add(offline({.num_prompt = random.between(1, 150), .first_token = family, .max_tokens = 20}));
      }
      engine.run(/*max_steps=*/4000);
      CHECK_EQ(engine.engine.scheduler.stats().counters.num_finished[2], 45);
    }
  }
}

// ---- the reserve: mean and some deviations of what online requests held, less what they hold ----

struct UseLog {
  std::vector<std::pair<double, int64_t>> uses;  // from when on, units; less than an hour of them

  int64_t reserve(double num_deviations) const {
    double seconds = 0.0;
    double sum = 0.0;
    double squares = 0.0;
    for (size_t i = 0; i + 1 < uses.size(); ++i) {
      const double duration = uses[i + 1].first - uses[i].first;
      const auto units = static_cast<double>(uses[i].second);
      seconds += duration;
      sum += duration * units;
      squares += duration * units * units;
    }
    if (seconds == 0.0) return 0;
    const double mean = sum / seconds;
    const double deviation = std::sqrt(std::max(0.0, squares / seconds - mean * mean));
    const double left = mean + num_deviations * deviation - static_cast<double>(uses.back().second);
    return static_cast<int64_t>(std::ceil(std::max(0.0, left) - 1e-6));
  }
};

// Without a prefix cache a request's units follow from its tokens.
struct Holding {
  int32_t num_computed = 0;
  int32_t num_seated = 0;  // tokens known when it was seated

  int64_t held(const SchedulerConfig& config) const {
    return num_computed == 0 ? 0 : int64_t{config.blocks_for(num_computed)} * config.units_per_block();
  }
  int64_t promised(const SchedulerConfig& config) const {
    return std::max(held(config), int64_t{num_seated / config.block_size + 1} * config.units_per_block());
  }
};

TEST(offline_work, what_comes_in_leaves_the_reserve_free) {
  struct Case {
    const char* policy;
    double asked;  // negative: the policy's own
    double num_deviations;
  };
  for (const auto& [policy, asked, num_deviations] :
       {Case{"echo", -1, 2}, Case{"hocket", -1, 1}, Case{"hocket", 2, 2}, Case{"hocket", 0.5, 0.5}}) {
    int32_t num_admitted = 0;
    int32_t num_kept_out = 0;
    for (unsigned seed = 0; seed < 10; ++seed) {
      Random random{std::mt19937(seed)};
      SchedulerConfig config = timed_config(policy, /*num_blocks=*/120);
      config.reserve_deviations = asked;
      config.enable_prefix_caching = false;
      TimedEngine engine(config);
      UseLog log;
      std::map<uint64_t, Holding> holdings;
      for (int32_t i = 0; i < 500; ++i) {
        const bool is_burst = i / 50 % 2 == 0;
        if (random.chance(is_burst ? 30 : 3)) engine.add({.num_prompt = random.between(20, 60), .max_tokens = 20});
        if (engine.num_waiting() < 4) engine.add(offline({.num_prompt = random.between(4, 60), .max_tokens = 15}));
        int64_t online = 0;
        int64_t spoken_for = 0;
        bool any_offline = false;
        for (const auto& [id, holding] : holdings) {
          online += engine.is_online(id) ? holding.held(config) : 0;
          any_offline |= !engine.is_online(id);
          spoken_for += holding.promised(config);
        }
        log.uses.emplace_back(engine.engine.now, online);
        const int64_t room = config.num_units - spoken_for - log.reserve(num_deviations);
        const Event event = engine.step();
        for (const uint64_t id : event.preempted) holdings.erase(id);
        int64_t taken = 0;
        for (int32_t s = 0; s < event.plan.num_seqs(); ++s) {
          const uint64_t id = event.plan.request_ids[s];
          const auto [place, is_new] = holdings.try_emplace(id);
          const auto& request = engine.engine.requests.at(id);
          const auto num_sampled = static_cast<int32_t>(event.sampled.contains(id));
          const auto num_known = static_cast<int32_t>(request.prompt.size() + request.output.size()) - num_sampled;
          place->second.num_computed = event.plan.seq_lens[s];
          if (!is_new) continue;
          place->second.num_seated = num_known;
          if (!engine.is_online(id)) taken += place->second.promised(config);
        }
        if (taken > 0) {
          ++num_admitted;
          if (event.served.size() > 1) CHECK(taken <= room);  // alone, anything may run
        }
        num_kept_out += taken == 0 && engine.engine.scheduler.stats().num_waiting[1] > 0;
        std::erase_if(holdings, [&](const auto& entry) { return engine.has_ended(entry.first); });
      }
    }
    CHECK(num_admitted > 100);
    CHECK(num_kept_out > 100);
  }
}

// ---- picks ----

TEST(offline_work, who_shares_a_prefix_with_the_cache_goes_before_who_came_first) {
  for (const char* policy : {"bs_es", "echo", "hocket"}) {
    SchedulerConfig config = timed_config(policy, 400);
    config.max_num_seqs = 1;
    TimedEngine engine(config);
    const auto add = [&](int32_t family) {
      return engine.add(offline({.num_prompt = 60, .first_token = family, .max_tokens = 2}));
    };
    Ids ids;
    for (const int32_t family : {100000, 200000, 300000, 200000, 100000, 300000}) ids.push_back(add(family));
    Ids order;
    for (const Event& event : engine.run()) {
      for (const uint64_t id : event.served) {
        if (std::ranges::count(order, id) == 0) order.push_back(id);
      }
    }
    // Whichever came first, its family follows at once.
    for (size_t i = 0; i < order.size(); i += 2) {
      CHECK_EQ(engine.specs.at(order[i]).first_token, engine.specs.at(order[i + 1]).first_token);
    }
  }
}

TEST(offline_work, without_plan_search_it_comes_in_order_of_arrival) {
  SchedulerConfig config = timed_config("hocket", 400);
  config.max_num_seqs = 1;
  config.enable_plan_search = false;
  TimedEngine engine(config);
  for (const int32_t family : {100000, 200000, 100000}) {
    engine.add(offline({.num_prompt = 60, .first_token = family, .max_tokens = 2}));
  }
  Ids order;
  for (const Event& event : engine.run()) {
    for (const uint64_t id : event.served) {
      if (std::ranges::count(order, id) == 0) order.push_back(id);
    }
  }
  CHECK_EQ(order, (Ids{1, 2, 3}));
}

TEST(offline_work, it_runs_beside_online_requests_although_step_times_are_unknown) {
  for (const char* policy : kPolicies) {
    TimedEngine engine(timed_config(policy, 400), Estimates());
    engine.add({.num_prompt = 8, .itl_target = 0.1, .max_tokens = 40});
    const uint64_t bulk = engine.add(offline({.num_prompt = 8, .max_tokens = 20}));
    for (int32_t i = 0; i < 25; ++i) engine.step();
    CHECK(engine.has_ended(bulk));
  }
}

}  // namespace
}  // namespace hocket
