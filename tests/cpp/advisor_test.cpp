// The advisor, beside an engine in a page that owns its memory and does what it is told, or not.

#include "advisor/advisor.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "base/check.h"
#include "testing.h"

namespace hocket {
namespace {

constexpr int32_t kBlock = 16;

SchedulerConfig config_of(const char* policy, int32_t num_blocks = 100, int32_t num_rows = 8, int32_t budget = 64) {
  SchedulerConfig config;
  config.num_layers = 1;
  config.layers_per_unit = 1;
  config.num_units = 2 * num_blocks;
  config.block_size = kBlock;
  config.max_num_seqs = num_rows;
  config.max_num_batched_tokens = budget;
  config.max_model_len = 1000;
  config.policy = policy;
  return config;
}

Estimates seconds_per_token(double base, double per_token) {
  LatencyCoefficients k;
  k.step_base = base;
  k.prefill_token = per_token;
  k.decode_seq = per_token;
  k.overlap = 0.0;
  Estimates estimates;
  estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  return estimates;
}

// An engine that allocates blocks as it goes, never more than it has; who finds none is left out of the step.
struct Engine {
  struct Request {
    int32_t num_prompt;
    int32_t max_tokens;
    int32_t num_computed = 0;
    int32_t num_output = 0;
    bool is_running = false;
    int32_t num_known() const { return num_prompt + num_output; }
  };

  Engine(const SchedulerConfig& config, const Estimates& estimates = Estimates())
      : num_blocks(config.num_blocks()), advisor(config, estimates), twin(config, estimates) {}

  Slot add(int32_t num_prompt, int32_t max_tokens, int32_t request_class = kOnlineClass, Targets targets = {}) {
    const std::vector<int32_t> prompt(num_prompt, 1);
    RequestSpec spec;
    spec.prompt = prompt;
    spec.max_tokens = max_tokens;
    spec.request_class = request_class;
    spec.arrival_time = now;
    spec.targets = targets;
    const Slot slot = advisor.add_request(spec);
    CHECK_EQ(twin.add_request(spec), slot);
    requests[slot] = {num_prompt, max_tokens};
    return slot;
  }

  int32_t num_held() const {
    int32_t num = 0;
    for (const auto& [slot, r] : requests) num += (r.num_computed + kBlock - 1) / kBlock;
    return num;
  }

  const Advice& compose() {
    std::vector<int32_t> computed;
    for (const Slot slot : running) computed.push_back(requests.at(slot).num_computed);
    return advisor.compose(now, running, computed, num_blocks - num_held());
  }

  void put_out(Slot slot) {
    Request& r = requests.at(slot);
    if (r.is_running) twin.note_preempted(std::vector<Slot>{slot});
    r.is_running = false;
    r.num_computed = 0;
    std::erase(running, slot);
  }

  // The twin is not told who runs, and says the same.
  void compare(const Advice& advice) {
    const Advice* known = twin.compose_known(now, static_cast<int32_t>(running.size()), num_blocks - num_held());
    CHECK(known != nullptr);
    CHECK_EQ(known->preempted, advice.preempted);
    CHECK_EQ(known->admitted, advice.admitted);
    CHECK_EQ(known->granted, advice.granted);
    CHECK_EQ(known->tokens, advice.tokens);
    CHECK_EQ(known->limited, advice.limited);
    CHECK_EQ(known->limits, advice.limits);
    CHECK_EQ(known->order, advice.order);
  }

  // One step; returns how many tokens it had.
  int32_t step() {
    const Advice& advice = compose();
    compare(advice);
    for (const Slot slot : advice.preempted) {
      CHECK(requests.at(slot).is_running);
      put_out(slot);
    }
    std::vector<Slot> slots, came;
    std::vector<int32_t> tokens, computed, sampled;
    int32_t num_granted = 0;
    for (size_t i = 0; i < advice.granted.size(); ++i) {
      const Slot slot = advice.granted[i];
      Request& r = requests.at(slot);
      num_granted += advice.tokens[i];
      const bool is_admitted = std::ranges::count(advice.admitted, slot) > 0;
      CHECK(is_admitted != r.is_running);
      const int32_t n = std::min(advice.tokens[i], r.num_known() - r.num_computed);
      const auto blocks = [](int32_t num_tokens) { return (num_tokens + kBlock - 1) / kBlock; };
      if (num_held() + blocks(r.num_computed + n) - blocks(r.num_computed) > num_blocks) continue;
      CHECK(n > 0);
      if (!r.is_running) {
        came.push_back(slot);
        running.push_back(slot);
      }
      r.is_running = true;
      slots.push_back(slot);
      tokens.push_back(n);
      computed.push_back(r.num_computed);
      r.num_computed += n;
      sampled.push_back(r.num_computed == r.num_known() ? 1 : 0);
    }
    CHECK_EQ(num_granted, advice.num_tokens);
    advisor.note_scheduled(now, slots, tokens, computed);
    if (slots == advice.granted && tokens == advice.tokens) {
      twin.note_advised(now, came, std::vector<int32_t>(came.size(), 0));
    } else {
      twin.note_scheduled(now, slots, tokens, computed);
    }
    now += 0.01;
    if (!slots.empty()) {
      advisor.commit(now, slots, sampled);
      const auto num_outputs = static_cast<int32_t>(std::ranges::count(sampled, 1));
      CHECK(!twin.commit_expected(now, num_outputs + 1));
      CHECK(twin.commit_expected(now, num_outputs));
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      Request& r = requests.at(slots[i]);
      r.num_output += sampled[i];
      if (r.num_output < r.max_tokens) continue;
      advisor.remove(slots[i], true);
      twin.remove(slots[i], true);
      std::erase(running, slots[i]);
      requests.erase(slots[i]);
    }
    advisor.check_invariants();
    twin.check_invariants();
    int32_t num = 0;
    for (const int32_t n : tokens) num += n;
    return num;
  }

  int32_t num_blocks;
  double now = 0.0;
  Advisor advisor;
  Advisor twin;
  std::map<Slot, Request> requests;
  std::vector<Slot> running;  // in order of admission
};

TEST(advisor, serves_prompts_in_chunks_and_then_their_tokens) {
  Engine engine(config_of("fcfs"));
  const Slot slot = engine.add(100, 3);
  CHECK_EQ(engine.compose().admitted, std::vector<Slot>{slot});
  CHECK_EQ(engine.step(), 64);
  CHECK_EQ(engine.step(), 36);
  CHECK_EQ(engine.step(), 1);
  CHECK_EQ(engine.step(), 1);
  CHECK(engine.requests.empty());
}

TEST(advisor, a_request_that_no_longer_runs_in_the_engine_waits_again) {
  Engine engine(config_of("hocket"));
  const Slot slot = engine.add(40, 5);
  engine.step();
  engine.step();
  engine.put_out(slot);  // the engine's own doing
  const Advice& advice = engine.compose();
  CHECK_EQ(advice.admitted, std::vector<Slot>{slot});
  CHECK_EQ(advice.tokens, std::vector<int32_t>{42});
  CHECK_EQ(engine.advisor.counters().num_preempted[kOnlineClass], 1);
}

TEST(advisor, what_the_engine_has_cached_costs_nothing) {
  Engine engine(config_of("hocket"));
  const Slot slot = engine.add(60, 5);
  engine.advisor.set_cached(slot, 32);
  CHECK_EQ(engine.compose().tokens, std::vector<int32_t>{28});
}

TEST(advisor, offline_work_rests_while_it_would_make_an_online_gap_too_long) {
  Engine engine(config_of("hocket", 1000, 8, 512), seconds_per_token(0.001, 0.001));
  const Slot online = engine.add(4, 100, kOnlineClass, {.ttft = 1.0, .itl = 0.03});
  engine.step();
  engine.step();
  const Slot offline = engine.add(400, 10, kOfflineClass);
  const Advice& advice = engine.compose();
  CHECK(std::ranges::count(advice.granted, online) == 1);
  CHECK(advice.num_tokens < 32);  // 30 ms at a millisecond a token
  engine.step();
  CHECK(engine.requests.at(offline).num_computed < 32);
}

TEST(advisor, an_online_request_puts_out_offline_ones_when_memory_is_short) {
  Engine engine(config_of("hocket", 20));
  const Slot offline = engine.add(250, 50, kOfflineClass);
  for (int i = 0; i < 4; ++i) engine.step();
  const Slot online = engine.add(100, 10);
  const Advice& advice = engine.compose();
  CHECK_EQ(advice.preempted, std::vector<Slot>{offline});
  CHECK_EQ(advice.admitted, std::vector<Slot>{online});
}

TEST(advisor, when_memory_may_run_out_the_first_to_give_way_stands_last) {
  Engine engine(config_of("priority", 12, 8, 256));
  const Slot first = engine.add(50, 60);
  const Slot second = engine.add(50, 60);
  engine.step();
  CHECK(engine.compose().order.empty());
  for (int i = 0; i < 45 && engine.compose().order.empty(); ++i) engine.step();
  CHECK_EQ(engine.compose().order, (std::vector<Slot>{first, second}));
}

bool accepts(Engine* engine, int32_t num_prompt, int32_t num_cached = 0, int32_t request_class = kOnlineClass) {
  const std::vector<int32_t> prompt(num_prompt, 1);
  RequestSpec spec;
  spec.prompt = prompt;
  spec.request_class = request_class;
  return engine->advisor.accepts(spec, num_cached);
}

TEST(advisor, whose_first_token_would_come_too_late_is_not_accepted) {
  SchedulerConfig config = config_of("hocket", 1000, 8, 256);
  config.max_ttft_ms = 500;
  Engine engine(config, seconds_per_token(0.01, 0.001));
  CHECK(accepts(&engine, 900));  // nobody waits
  for (int i = 0; i < 4; ++i) engine.add(100, 20);
  CHECK(accepts(&engine, 90));
  CHECK(!accepts(&engine, 110));
  CHECK(engine.advisor.retry_seconds() >= 1.0);
  CHECK(accepts(&engine, 110, 32));
  CHECK(accepts(&engine, 900, 0, kOfflineClass));
  CHECK(engine.advisor.predicted_ttft() > 0.3);
  engine.step();  // 256 of the 400 tokens, and nobody is seated yet
  CHECK(accepts(&engine, 110));
  for (int i = 0; i < 6; ++i) engine.step();
  CHECK_EQ(engine.advisor.predicted_ttft(), 0.0);  // decodes are nobody's wait
  CHECK(accepts(&engine, 900));
}

TEST(advisor, everybody_is_accepted_without_a_limit) {
  Engine engine(config_of("hocket"), seconds_per_token(0.01, 1.0));
  for (int i = 0; i < 4; ++i) engine.add(100, 20);
  CHECK(accepts(&engine, 900));
}

// Its output so far is computed with its prompt, and counts as output: nobody's first token is refused twice.
TEST(advisor, a_request_goes_on_where_another_engine_left_it) {
  SchedulerConfig config = config_of("hocket", 1000, 8, 256);
  config.max_ttft_ms = 500;
  Advisor advisor(config, seconds_per_token(0.01, 0.001));
  const std::vector<int32_t> known(40, 1);
  RequestSpec spec;
  spec.prompt = known;
  spec.max_tokens = 5;
  spec.num_prior_tokens = 30;
  spec.last_token_time = -0.5;
  const std::vector<Slot> slots{advisor.add_request(spec)};
  CHECK_EQ(advisor.compose(0.0, {}, {}, 1000).tokens, std::vector<int32_t>{40});
  advisor.note_scheduled(0.0, slots, std::vector<int32_t>{40}, std::vector<int32_t>{0});
  CHECK(advisor.commit_expected(0.05, 1));
  CHECK_EQ(advisor.compose_known(0.05, 1, 997)->tokens, std::vector<int32_t>{1});
  advisor.note_preempted(slots);
  const Advice* again = advisor.compose_known(0.06, 0, 1000);
  CHECK_EQ(again->tokens, std::vector<int32_t>{41});  // with the token that came here
  advisor.check_invariants();
  spec.num_prior_tokens = 40;
  CHECK_THROWS(advisor.add_request(spec), std::invalid_argument);
}

// Memory for one of two, and steps of 10 ms: who has waited for long is served, and gives way when the other has waited
// as long and its turn is over. Without turns one of them keeps its place.
TEST(advisor, those_that_waited_for_long_take_turns) {
  SchedulerConfig config = config_of("hocket", 30, 8, 256);
  config.max_wait_ms = 100;
  const auto least_served = [&](double turn_ms) {
    config.starving_turn_ms = turn_ms;
    Engine engine(config, seconds_per_token(0.01, 0.0));
    const Slot first = engine.add(250, 200), second = engine.add(250, 200);
    for (int i = 0; i < 150; ++i) engine.step();
    return std::min(engine.requests.at(first).num_output, engine.requests.at(second).num_output);
  };
  CHECK(least_served(std::numeric_limits<double>::infinity()) < 20);
  CHECK(least_served(50) > 30);
}

TEST(advisor, steps_may_overlap) {
  Advisor advisor(config_of("hocket"));
  const std::vector<int32_t> prompt(10, 1);
  RequestSpec spec;
  spec.prompt = prompt;
  spec.max_tokens = 5;
  const Slot slot = advisor.add_request(spec);
  advisor.compose(0.0, {}, {}, 100);
  const std::vector<Slot> slots{slot};
  advisor.note_scheduled(0.0, slots, std::vector<int32_t>{10}, std::vector<int32_t>{0});
  const Advice& advice = advisor.compose(0.01, slots, std::vector<int32_t>{10}, 99);
  CHECK_EQ(advice.tokens, std::vector<int32_t>{1});  // of a token that is still being sampled
  advisor.note_scheduled(0.01, slots, std::vector<int32_t>{1}, std::vector<int32_t>{10});
  advisor.commit(0.02, slots, std::vector<int32_t>{1});
  advisor.commit(0.03, slots, std::vector<int32_t>{1});
  advisor.remove(slot, true);
  advisor.check_invariants();
  CHECK_THROWS(advisor.commit(0.04, slots, std::vector<int32_t>{1}), CoreError);
}

TEST(advisor, who_runs_has_to_be_told_where_it_cannot_be_known) {
  Advisor advisor(config_of("hocket"));
  const std::vector<int32_t> prompt(10, 1);
  RequestSpec spec;
  spec.prompt = prompt;
  spec.max_tokens = 5;
  const std::vector<Slot> slots{advisor.add_request(spec), advisor.add_request(spec)};
  CHECK(advisor.compose_known(0.0, 1, 100) == nullptr);
  const Advice* advice = advisor.compose_known(0.0, 0, 100);
  CHECK(advice != nullptr);
  CHECK_EQ(advice->limited, slots);  // whoever comes in, since the engine may find more or less of it cached
  advisor.note_advised(0.0, slots, std::vector<int32_t>{0, 0});
  advice = advisor.compose_known(0.01, 2, 98);
  CHECK(advice->limited.empty());
  advisor.note_advised(0.01, {}, {});
  CHECK(!advisor.commit_expected(0.02, 1));
  CHECK(advisor.commit_expected(0.02, 2));
  advisor.remove(slots[0], false);
  CHECK(advisor.compose_known(0.03, 2, 98) == nullptr);
  CHECK(advisor.commit_expected(0.03, 1));  // of the one that still lives
  advisor.check_invariants();
}

TEST(advisor, refuses_what_no_advised_engine_can_do) {
  SchedulerConfig config = config_of("hocket");
  config.enable_partial_caching = true;
  CHECK_THROWS(Advisor{config}, std::invalid_argument);
  Advisor advisor(config_of("hocket"));
  CHECK_THROWS(advisor.add_request({}), std::invalid_argument);
}

TEST(advisor, every_request_of_a_random_history_ends_under_every_policy) {
  for (const auto name : policy_names()) {
    const std::string policy(name);
    for (uint32_t seed = 0; seed < 4; ++seed) {
      std::mt19937 random(seed);
      const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % n); };
      Engine engine(config_of(policy.c_str(), 40, 6), seconds_per_token(0.001, 0.0001));
      int32_t num_added = 0;
      for (int step = 0; step < 4000 && (num_added < 60 || !engine.requests.empty()); ++step) {
        if (num_added < 60 && below(3) == 0) {
          engine.add(1 + below(200), 1 + below(40), below(2));
          ++num_added;
        }
        if (!engine.requests.empty() && below(40) == 0) {  // the engine puts somebody out of its own accord
          engine.put_out(std::next(engine.requests.begin(), below(engine.requests.size()))->first);
        }
        engine.step();
      }
      CHECK(engine.requests.empty());
    }
  }
}

}  // namespace
}  // namespace hocket
