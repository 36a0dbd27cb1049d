// No step takes longer than the tightest online deadline allows, but for what must go on: the online decodes,
// and the least chunk of one online prompt.

#include <random>

#include "stages/class_order.h"
#include "testing.h"
#include "timed_engine.h"

namespace hocket {
namespace {

using testing::Event;
using testing::linear_seconds;
using testing::RequestOf;
using testing::timed_config;
using testing::TimedEngine;

constexpr int32_t kLeastChunk = 64;
constexpr double kRounding = 1e-9;  // seconds

struct Random {
  std::mt19937 source;
  int32_t between(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(source); }
  bool chance(int32_t percent) { return between(1, 100) <= percent; }
};

// What the engine has computed and when, read off its plans alone. Memory is ample: nothing is computed twice.
struct Progress {
  std::map<uint64_t, int32_t> num_computed;
  std::map<uint64_t, double> first_token;
  std::map<uint64_t, double> last_token;

  void see(const Event& event) {
    for (int32_t s = 0; s < event.plan.num_seqs(); ++s)
      num_computed[event.plan.request_ids[s]] = event.plan.seq_lens[s];
    for (const uint64_t id : event.sampled) {
      first_token.emplace(id, event.end);
      last_token[id] = event.end;
    }
  }

  int32_t num_left(const TimedEngine& engine, uint64_t id) const {
    const auto& request = engine.engine.requests.at(id);
    const auto computed = num_computed.find(id);
    const auto num_known = static_cast<int32_t>(request.prompt.size() + request.output.size());
    return num_known - (computed == num_computed.end() ? 0 : computed->second);
  }

  // Seconds until the first deadline, still ahead, of a running online request that has one token to compute.
  double tightest_slack(const TimedEngine& engine, double now) const {
    double slack = testing::kNoTarget;
    const auto meet = [&](double deadline) {
      if (deadline > now) slack = std::min(slack, deadline - now);
    };
    for (const auto& [id, computed] : num_computed) {
      if (!engine.is_online(id) || engine.has_ended(id) || num_left(engine, id) > 1) continue;
      const RequestOf& spec = engine.specs.at(id);
      const bool has_ttft = spec.ttft_target < testing::kNoTarget;
      if (!last_token.contains(id)) {
        meet(spec.arrival + spec.ttft_target);
        continue;
      }
      meet(last_token.at(id) + spec.itl_target);
      const auto num_output = static_cast<double>(engine.engine.output(id).size());
      const double first_due = has_ttft ? spec.arrival + spec.ttft_target : first_token.at(id);
      meet(first_due + num_output * spec.tpot_target);
    }
    return slack;
  }
};

struct Tally {
  int32_t num_limited = 0;  // steps that a deadline made shorter than the work at hand
  int32_t num_overrun = 0;  // for decodes and the least chunk
  int32_t num_offline = 0;  // beside online decodes
};

Tally run_random_world(const char* policy, unsigned seed) {
  Random random{std::mt19937(seed)};
  SchedulerConfig config = timed_config(policy, /*num_blocks=*/4000, /*num_rows=*/32);
  config.enable_prefix_caching = false;
  TimedEngine engine(config, linear_seconds(0.005, 0.0005));
  Progress progress;
  Tally tally;
  for (int32_t i = 0; i < 300; ++i) {
    if (random.chance(15)) {
      RequestOf request;
      request.num_prompt = random.between(1, 300);
      request.max_tokens = random.between(1, 40);
      if (random.chance(80)) request.ttft_target = 0.1 * random.between(1, 20);
      const bool has_tpot = random.chance(50);
      if (!has_tpot || random.chance(30)) request.itl_target = 0.006 * random.between(1, 20);
      if (has_tpot) request.tpot_target = 0.006 * random.between(1, 20);
      if (random.chance(60)) request.request_class = kOfflineClass;
      engine.add(request);
    }
    if (!engine.engine.scheduler.has_work()) continue;
    const double slack = progress.tightest_slack(engine, engine.engine.now);
    std::map<uint64_t, int32_t> num_left;
    for (const auto& [id, spec] : engine.specs) num_left[id] = progress.num_left(engine, id);
    const Event event = engine.step();
    progress.see(event);

    int32_t num_chunks = 0;
    int32_t num_offline = 0;
    int32_t longest_chunk = 0;
    int32_t num_tokens = 0;
    for (int32_t s = 0; s < event.plan.num_seqs(); ++s) {
      const uint64_t id = event.plan.request_ids[s];
      const int32_t n = event.plan.query_start[s + 1] - event.plan.query_start[s];
      num_tokens += n;
      num_offline += !engine.is_online(id);
      if (num_left.at(id) == 1) continue;
      ++num_chunks;
      longest_chunk = std::max(longest_chunk, n);
    }
    const double limit = slack / StepMargin::kLeast;
    const double seconds = event.end - event.begin;
    tally.num_offline += num_offline > 0 && slack < testing::kNoTarget;
    tally.num_limited += seconds > limit - 0.001 && seconds <= limit + kRounding && num_tokens < 256;
    if (seconds <= limit + kRounding) continue;
    ++tally.num_overrun;
    CHECK_EQ(num_offline, 0);
    CHECK(num_chunks <= 1 && longest_chunk <= kLeastChunk);
  }
  return tally;
}

TEST(deadline, no_step_is_longer_than_the_tightest_deadline_but_for_what_must_go_on) {
  for (const char* policy : {"bs_e", "bs_es", "echo", "hocket"}) {
    Tally sum;
    for (unsigned seed = 0; seed < 15; ++seed) {
      try {
        const Tally tally = run_random_world(policy, seed);
        sum.num_limited += tally.num_limited;
        sum.num_overrun += tally.num_overrun;
        sum.num_offline += tally.num_offline;
      } catch (const std::exception& error) {
        throw testing::Failure(std::string(policy) + ", seed " + std::to_string(seed) + ": " + error.what());
      }
    }
    // The worlds must have met what they are for.
    CHECK(sum.num_limited > 100);
    CHECK(sum.num_overrun > 20);
    CHECK(sum.num_offline > 100);
  }
}

// 10 ms and 1 ms per token; a decode that is due 50 ms after the last token leaves 0.95 x 50 - 11 ms for others.
constexpr RequestOf kChat = {.num_prompt = 4, .itl_target = 0.05, .max_tokens = 20};

TEST(deadline, an_arriving_prompt_fills_what_the_deadline_leaves) {
  for (const char* policy : {"bs_e", "bs_es", "echo", "hocket"}) {
    TimedEngine engine(timed_config(policy, 400));
    engine.add(kChat);
    engine.step();
    const uint64_t id = engine.add({.num_prompt = 100});
    const Event event = engine.step();
    CHECK_EQ(event.plan.num_tokens(), 1 + 36);  // 0.95 x 50 = 47.5 = 10 + 1 + 36 and a half
    CHECK(event.served.contains(id));
  }
}

// It has run ahead: ten tokens after 113 ms, due at 300 ms and every 50 ms from there.
Event step_beside_one_that_ran_ahead(const char* policy, double itl_target, double tpot_target) {
  TimedEngine engine(timed_config(policy, 400));
  engine.add(
      {.num_prompt = 4, .ttft_target = 0.3, .itl_target = itl_target, .tpot_target = tpot_target, .max_tokens = 40});
  for (int32_t i = 0; i < 10; ++i) engine.step();
  engine.add({.num_prompt = 300});
  return engine.step();
}

TEST(deadline, who_ran_ahead_lends_its_slack_under_a_tpot_target) {
  for (const char* policy : {"bs_e", "bs_es", "echo", "hocket"}) {
    // Token 10 is due at 800 ms: the whole step's 256 tokens fit. Last token + 50 ms has room for 36.
    CHECK_EQ(step_beside_one_that_ran_ahead(policy, testing::kNoTarget, 0.05).plan.num_tokens(), 256);
    CHECK_EQ(step_beside_one_that_ran_ahead(policy, 0.05, testing::kNoTarget).plan.num_tokens(), 1 + 36);
    CHECK_EQ(step_beside_one_that_ran_ahead(policy, 0.05, 0.05).plan.num_tokens(), 1 + 36);
  }
}

// It has the first token late, and cannot make up for that; the next gap it still can keep.
TEST(deadline, a_cumulative_deadline_that_has_passed_leaves_the_gap_deadline_in_force) {
  for (const char* policy : {"bs_e", "echo", "hocket"}) {
    TimedEngine engine(timed_config(policy, 400));
    engine.add({.num_prompt = 4, .ttft_target = 0.001, .itl_target = 0.05, .tpot_target = 0.001, .max_tokens = 20});
    engine.step();
    engine.add({.num_prompt = 100});
    CHECK_EQ(engine.step().plan.num_tokens(), 1 + 36);
  }
}

TEST(deadline, without_an_estimator_a_prompt_is_computed_at_once) {
  TimedEngine engine(timed_config("bs", 400));
  engine.add(kChat);
  engine.step();
  engine.add({.num_prompt = 100});
  CHECK_EQ(engine.step().plan.num_tokens(), 1 + 100);
}

TEST(deadline, switched_off_a_prompt_is_computed_at_once) {
  SchedulerConfig config = timed_config("hocket", 400);
  config.enable_deadlines = false;
  TimedEngine engine(config);
  engine.add(kChat);
  engine.step();
  engine.add({.num_prompt = 100});
  CHECK_EQ(engine.step().plan.num_tokens(), 1 + 100);
}

TEST(deadline, however_tight_the_first_prompt_advances_by_the_least_chunk) {
  for (const char* policy : {"bs_e", "bs_es", "echo", "hocket"}) {
    TimedEngine engine(timed_config(policy, 400));
    RequestOf hasty = kChat;
    hasty.itl_target = 0.0111;  // a decode alone makes it, nothing else fits
    engine.add(hasty);
    engine.step();
    const uint64_t first = engine.add({.num_prompt = 100});
    engine.add({.num_prompt = 100});
    RequestOf offline = {.num_prompt = 4};
    offline.request_class = kOfflineClass;
    engine.add(offline);
    const Event event = engine.step();
    CHECK_EQ(event.served, (std::set<uint64_t>{1, first}));
    CHECK_EQ(event.plan.num_tokens(), 1 + kLeastChunk);
  }
}

TEST(deadline, one_that_cannot_be_met_any_more_holds_nobody_up) {
  for (const char* policy : {"bs_e", "echo", "hocket"}) {
    TimedEngine engine(timed_config(policy, 400));
    RequestOf lost = kChat;
    lost.itl_target = 0.005;  // even a decode alone takes longer
    engine.add(lost);
    engine.step();
    engine.engine.now += 0.006;
    engine.add({.num_prompt = 100});
    CHECK_EQ(engine.step().plan.num_tokens(), 1 + 100);
  }
}

// Whole prompts: one that does not fit the time comes whole, or not at all.
TEST(deadline, a_whole_prompt_is_never_cut) {
  for (const char* policy : {"bs_e", "bs_es", "echo", "hocket"}) {
    SchedulerConfig config = timed_config(policy, 400);
    config.enable_chunked_prefill = false;
    TimedEngine engine(config);
    engine.add(kChat);
    engine.step();
    engine.add({.num_prompt = 100});
    for (int32_t i = 0; i < 30 && engine.engine.scheduler.has_work(); ++i) {
      const Event event = engine.step();
      const int32_t num_prompt_tokens = event.plan.num_tokens() - static_cast<int32_t>(event.served.contains(1));
      if (event.served.contains(2) && engine.engine.output(2).size() <= 1) CHECK_EQ(num_prompt_tokens, 100);
    }
    CHECK(!engine.engine.output(2).empty());
  }
}

}  // namespace
}  // namespace hocket
