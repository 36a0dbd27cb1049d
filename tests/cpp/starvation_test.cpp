// Nobody starves: who has waited for max_wait_ms without a token is served before all others, the oldest first, and
// keeps its place until it ends. So a request waits no longer than max_wait_ms and the service of older such ones.

#include <random>

#include "testing.h"
#include "timed_engine.h"

namespace hocket {
namespace {

using testing::Event;
using testing::RequestOf;
using testing::timed_config;
using testing::TimedEngine;

constexpr RequestOf kShort = {.num_prompt = 8, .max_tokens = 8};
constexpr RequestOf kLong = {.num_prompt = 60, .max_tokens = 20};

// Who starves, told from the log alone: pending for longer than the wait that its class may have, or seated so.
class Watch {
 public:
  Watch(const TimedEngine* engine, const SchedulerConfig& config) : engine_(*engine), config_(config) {}

  // Before the step.
  std::vector<uint64_t> starving(double now) const {
    std::vector<uint64_t> ids;
    for (const auto& [id, spec] : engine_.specs) {
      if (engine_.has_ended(id)) continue;
      if (is_starved_.contains(id) || is_pending_too_long(id, now)) ids.push_back(id);
    }
    std::ranges::sort(ids, [&](uint64_t a, uint64_t b) {
      return std::pair(engine_.specs.at(a).arrival, a) < std::pair(engine_.specs.at(b).arrival, b);
    });
    return ids;
  }

  void see(const Event& event) {
    for (const uint64_t id : event.preempted) is_seated_.erase(id);
    for (const uint64_t id : event.served) {
      if (is_seated_.insert(id).second && is_pending_too_long(id, event.begin)) is_starved_.insert(id);
    }
    for (const uint64_t id : event.sampled) last_token_[id] = event.end;
  }

  bool is_starved(uint64_t id) const { return is_starved_.contains(id); }

 private:
  bool is_pending_too_long(uint64_t id, double now) const {
    const auto token = last_token_.find(id);
    const double since = token == last_token_.end() ? engine_.specs.at(id).arrival : token->second;
    return (now - since) * 1000 > (engine_.is_online(id) ? config_.max_wait_ms : config_.max_offline_wait_ms);
  }

  const TimedEngine& engine_;
  const SchedulerConfig config_;
  std::map<uint64_t, double> last_token_;
  std::set<uint64_t> is_seated_;
  std::set<uint64_t> is_starved_;
};

SchedulerConfig overload_config(const char* policy, int32_t num_blocks, int32_t num_rows) {
  SchedulerConfig config = timed_config(policy, num_blocks, num_rows);
  config.max_wait_ms = 2000;
  config.max_offline_wait_ms = 4000;
  return config;
}

// ---- one long request among short ones that never end ----

// Returns how long the request waited for its first token.
double wait_among_short_ones(const SchedulerConfig& config, const RequestOf& kind) {
  TimedEngine engine(config);
  Watch watch(&engine, config);
  int32_t num_added = 0;
  const auto overload = [&] {
    while (engine.num_waiting() < 8) {
      RequestOf request = kShort;
      request.max_tokens = 4 + num_added++ % 9;
      engine.add(request);
    }
  };
  for (int32_t i = 0; i < 50; ++i) {
    overload();
    watch.see(engine.step());
  }
  const uint64_t id = engine.add(kind);
  const double arrival = engine.engine.now;
  double first_token = -1.0;
  for (int32_t i = 0; i < 2000 && !engine.has_ended(id); ++i) {
    overload();
    const Event event = engine.step();
    watch.see(event);
    if (first_token < 0 && event.sampled.contains(id)) first_token = event.end;
    CHECK(!(watch.is_starved(id) && event.preempted.contains(id)));
  }
  CHECK(engine.has_ended(id));
  return first_token - arrival;
}

TEST(starvation, a_long_request_among_short_ones_is_served_after_max_wait) {
  for (const char* policy : {"apt", "hocket"}) {
    for (const bool has_cache : {true, false}) {
      SchedulerConfig config = overload_config(policy, /*num_blocks=*/40, /*num_rows=*/64);
      config.enable_prefix_caching = has_cache;
      CHECK(wait_among_short_ones(config, kLong) < 2.5);
    }
  }
}

// It may have to wait until those who run have ended: an offline request displaces no online one.
TEST(starvation, an_offline_request_is_served_after_its_own_max_wait) {
  for (const char* policy : {"bs", "bs_e", "bs_es", "echo", "hocket"}) {
    for (RequestOf kind : {kShort, kLong}) {
      kind.request_class = kOfflineClass;
      for (const int32_t num_rows : {4, 64}) {
        const double waited = wait_among_short_ones(overload_config(policy, 40, num_rows), kind);
        CHECK(waited > 4.0 || num_rows == 64);  // in so few rows it is the wait that lets it in
        CHECK(waited < 5.5);
      }
    }
  }
}

TEST(starvation, offline_requests_that_starve_are_served_one_by_one) {
  for (const char* policy : {"bs", "bs_e", "bs_es", "echo", "hocket"}) {
    TimedEngine engine(overload_config(policy, /*num_blocks=*/40, /*num_rows=*/4));
    RequestOf offline = kLong;
    offline.request_class = kOfflineClass;
    std::vector<uint64_t> ids;
    std::vector<uint64_t> ended;
    for (int32_t i = 0; i < 8; ++i) engine.add(kShort);
    for (int32_t i = 0; i < 4; ++i) ids.push_back(engine.add(offline));
    for (int32_t i = 0; i < 2000 && ended.size() < ids.size(); ++i) {
      while (engine.num_waiting() < 12) engine.add(kShort);
      engine.step();
      for (const uint64_t id : ids) {
        if (engine.has_ended(id) && std::ranges::count(ended, id) == 0) ended.push_back(id);
      }
    }
    CHECK_EQ(ended, ids);
  }
}

// ---- random overload ----

struct Random {
  std::mt19937 source;
  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(source); }
};

RequestOf random_request(Random* random, int32_t one_in, bool has_targets) {
  RequestOf request;
  const bool is_long = random->between(1, one_in) == 1;
  request.num_prompt = is_long ? random->between(40, 100) : random->between(3, 14);
  request.max_tokens = is_long ? random->between(1, 40) : random->between(2, 16);
  if (has_targets) {
    request.ttft_target = 0.5 * random->between(1, 6);
    request.itl_target = 0.05 * random->between(1, 4);
    if (random->between(0, 1)) request.tpot_target = 0.05 * random->between(1, 4);
  }
  return request;
}

struct Overload {
  std::vector<Event> events;
  std::vector<std::vector<uint64_t>> starving;  // before each event, the oldest first
};

// For 400 steps there is always somebody who waits.
Overload random_overload(const SchedulerConfig& config, TimedEngine* engine, unsigned seed) {
  Random random{std::mt19937(seed)};
  const int32_t one_in = random.between(2, 30);
  const bool has_targets = random.between(0, 1);
  Watch watch(engine, config);
  Overload overload;
  for (int32_t i = 0; i < 400; ++i) {
    while (engine->num_waiting() < 12) engine->add(random_request(&random, one_in, has_targets));
    overload.starving.push_back(watch.starving(engine->engine.now));
    overload.events.push_back(engine->step());
    watch.see(overload.events.back());
  }
  return overload;
}

SchedulerConfig random_config(const char* policy, unsigned seed) {
  Random random{std::mt19937(1000 + seed)};
  SchedulerConfig config = overload_config(policy, random.between(40, 90), 64);
  config.enable_prefix_caching = random.between(0, 1);
  config.hidden_units_per_group = random.between(0, 1);
  return config;
}

void fail_with_seed(const char* policy, unsigned seed, const std::string& what) {
  throw testing::Failure(std::string(policy) + ", seed " + std::to_string(seed) + ": " + what);
}

TEST(starvation, the_oldest_who_starves_is_served_in_every_step) {
  for (const char* policy : {"apt", "hocket"}) {
    size_t num_steps = 0;
    for (unsigned seed = 0; seed < 15; ++seed) {
      const SchedulerConfig config = random_config(policy, seed);
      TimedEngine engine(config);
      const Overload overload = random_overload(config, &engine, seed);
      for (size_t i = 0; i < overload.events.size(); ++i) {
        const auto& starving = overload.starving[i];
        num_steps += !starving.empty();
        if (starving.empty() || overload.events[i].served.contains(starving.front())) continue;
        fail_with_seed(policy, seed, "request " + std::to_string(starving.front()) + " is not served");
      }
    }
    CHECK(num_steps > 1000);
  }
}

// max_wait_ms, the step that was running when it had passed, and whatever older ones were served meanwhile.
TEST(starvation, nobody_waits_longer_than_max_wait_and_the_service_of_older_ones) {
  for (const char* policy : {"apt", "hocket"}) {
    int32_t num_waits = 0;
    for (unsigned seed = 0; seed < 15; ++seed) {
      const SchedulerConfig config = random_config(policy, seed);
      TimedEngine engine(config);
      const Overload overload = random_overload(config, &engine, seed);
      std::set<uint64_t> seen;
      for (size_t last = 0; last < overload.events.size(); ++last) {
        for (const uint64_t id : overload.events[last].served) {
          if (!seen.insert(id).second) continue;
          const double arrival = engine.specs.at(id).arrival;
          const double waited = overload.events[last].begin - arrival;
          if (waited * 1000 <= config.max_wait_ms) continue;
          ++num_waits;
          double bound = config.max_wait_ms / 1000;
          double longest_step = 0.0;
          for (size_t i = 0; i < last; ++i) {
            const Event& event = overload.events[i];
            if (event.begin < arrival) continue;
            longest_step = std::max(longest_step, event.end - event.begin);
            const bool is_for_older = std::ranges::any_of(overload.starving[i], [&](uint64_t other) {
              return other < id && event.served.contains(other);  // ids in order of arrival
            });
            bound += is_for_older ? event.end - event.begin : 0.0;
          }
          if (waited > bound + longest_step) fail_with_seed(policy, seed, std::to_string(id) + " waits too long");
        }
      }
    }
    CHECK(num_waits > 50);
  }
}

// Without a free row nobody comes in, and nobody comes in before the oldest who starves.
TEST(starvation, the_first_row_to_be_free_is_for_the_oldest) {
  for (const char* policy : {"apt", "hocket"}) {
    int32_t num_waits = 0;
    for (unsigned seed = 0; seed < 10; ++seed) {
      SchedulerConfig config = random_config(policy, seed);
      config.max_num_seqs = 3 + static_cast<int32_t>(seed) / 2;
      config.num_units = 2 * 400;  // rows are what is short
      config.max_wait_ms = 500;    // in order of arrival nobody waits for long
      TimedEngine engine(config);
      const Overload overload = random_overload(config, &engine, seed);
      std::set<uint64_t> seated;
      for (size_t i = 0; i < overload.events.size(); ++i) {
        const auto& starving = overload.starving[i];
        const auto& served = overload.events[i].served;
        const bool any_came_in = std::ranges::any_of(served, [&](uint64_t id) { return !seated.contains(id); });
        seated.insert(served.begin(), served.end());
        if (starving.empty() || served.contains(starving.front())) continue;
        ++num_waits;
        if (any_came_in) fail_with_seed(policy, seed, std::to_string(starving.front()) + " is overtaken");
      }
    }
    CHECK(num_waits > 30);
  }
}

}  // namespace
}  // namespace hocket
