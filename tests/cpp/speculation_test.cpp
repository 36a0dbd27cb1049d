// What requests say is guessed, computed and kept as far as it was right. The engine notices wrong vectors and tokens.
#include "speculation/speculation.h"

#include "base/check.h"
#include "fake_engine.h"
#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::FakeEngine;
using testing::linear_seconds;
using testing::Tokens;

// Blocks of 4 tokens, 2 units each. A token more takes a tenth of a step.
SchedulerConfig config_of(int32_t max_guessed_tokens, int32_t num_blocks = 64, int32_t num_rows = 8) {
  SchedulerConfig config;
  config.num_units = 2 * num_blocks;
  config.num_layers = 4;
  config.block_size = 4;
  config.max_num_seqs = num_rows;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 128;
  config.max_guessed_tokens = max_guessed_tokens;
  return config;
}

// Says again what it said seven tokens ago, most of the time.
struct RepeatingEngine : FakeEngine {
  explicit RepeatingEngine(const SchedulerConfig& config) : FakeEngine(config, 50, linear_seconds(0.010, 0.001)) {
    period = 7;
    pause = 0.02;
  }
};

int64_t num_steps(const FakeEngine& engine) { return engine.scheduler.stats().counters.num_steps; }
int64_t num_right(const FakeEngine& engine) { return engine.scheduler.stats().counters.num_right_guesses; }

TEST(speculation, a_text_that_repeats_itself_takes_fewer_steps) {
  RepeatingEngine plain(config_of(0));
  RepeatingEngine guessing(config_of(8));
  for (RepeatingEngine* engine : {&plain, &guessing}) {
    engine->add(1, {1, 2, 3}, 100);
    engine->run();
  }
  CHECK_EQ(guessing.output(1), plain.output(1));
  CHECK_EQ(num_steps(plain), 100);
  CHECK(num_steps(guessing) < 60);
  CHECK_EQ(num_steps(guessing) + num_right(guessing), 100);
  CHECK_EQ(guessing.scheduler.stats().counters.num_guessed_tokens, guessing.num_guessed);
}

TEST(speculation, guesses_are_decodes_of_the_same_row_one_position_further) {
  RepeatingEngine engine(config_of(8));
  engine.add(1, {1, 2, 3}, 100);
  BatchPlan plan;
  while (plan.num_seqs() < 4) plan = engine.step();
  for (int32_t s = 0; s < plan.num_seqs(); ++s) {
    CHECK_EQ(plan.request_ids[s], 1);
    CHECK_EQ(plan.rows[s], plan.rows[0]);
    CHECK_EQ(plan.positions[s], plan.positions[0] + s);
    CHECK_EQ(plan.seq_lens[s], plan.seq_lens[0] + s);
    CHECK_EQ(plan.sample_seqs[s], s);
    CHECK_EQ(plan.query_start[s], s);
  }
}

TEST(speculation, nobody_guesses_where_a_token_costs_as_much_as_a_step_or_nothing_is_known_of_time) {
  FakeEngine slow(config_of(8), 50, linear_seconds(0.0, 0.010));
  FakeEngine unknown(config_of(8), 50);
  for (FakeEngine* engine : {&slow, &unknown}) {
    engine->period = 7;
    engine->add(1, {1, 2, 3}, 100);
    engine->run();
    CHECK_EQ(engine->num_guessed, 0);
  }
}

TEST(speculation, a_text_that_does_not_repeat_itself_soon_makes_nobody_guess) {
  FakeEngine engine(config_of(8), 8, linear_seconds(0.010, 0.004));  // of eight words, at random
  for (uint64_t id = 0; id < 8; ++id) {
    engine.add(id, {1, 2, static_cast<int32_t>(id)}, 120);  // another prompt, so that nobody says the same
    engine.run();
  }
  const auto counters = engine.scheduler.stats().counters;
  CHECK(counters.num_guessed_tokens < counters.num_output_tokens / 20);
}

TEST(speculation, guesses_take_no_row_of_the_batch_from_anybody) {
  RepeatingEngine engine(config_of(8, 128, 5));
  for (uint64_t id = 0; id < 5; ++id) engine.add(id, {1, 2, static_cast<int32_t>(id)}, 60);
  while (engine.scheduler.has_work()) CHECK(engine.step().num_seqs() <= 5);
}

TEST(speculation, guesses_preempt_nobody) {
  SchedulerConfig config = config_of(8, 26);  // room for what four requests become, and hardly more
  RepeatingEngine engine(config);
  for (uint64_t id = 0; id < 4; ++id) engine.add(id, {1, 2, static_cast<int32_t>(id)}, 17);
  engine.run();
  CHECK_EQ(engine.scheduler.stats().counters.num_preemptions, 0);
  CHECK(num_right(engine) > 5);
}

TEST(speculation, a_request_ends_at_its_stop_token_in_the_middle_of_right_guesses) {
  RepeatingEngine plain(config_of(0));
  plain.add(1, {1, 2, 3}, 100);
  plain.run();
  for (int32_t stop = 0; stop < 50; ++stop) {
    RepeatingEngine engine(config_of(8));
    RequestSpec spec;
    spec.id = 1;
    spec.max_tokens = 100;
    spec.min_tokens = 40;
    engine.add(spec, {1, 2, 3}, "", {stop});
    engine.run();  // the engine compares with what must have been answered
    const Tokens& output = engine.output(1);
    CHECK(std::ranges::equal(output, std::span(plain.output(1)).first(output.size())));
  }
}

TEST(speculation, a_request_without_a_token_fails_and_keeps_what_it_had) {
  RepeatingEngine engine(config_of(8));
  engine.add(1, {1, 2, 3}, 100);
  while (engine.step().num_seqs() < 4) continue;
  int32_t num_calls = 0;
  engine.fails_sample = [&] { return ++num_calls == 2; };
  while (engine.scheduler.has_work()) engine.step();
  CHECK_EQ(engine.requests[1].reason, FinishReason::kError);
  CHECK(engine.output(1).size() < 100);
  engine.scheduler.check_invariants();
}

TEST(speculation, an_aborted_request_leaves_with_its_guesses) {
  RepeatingEngine engine(config_of(8));
  engine.add(1, {1, 2, 3}, 100);
  engine.add(2, {1, 2, 4}, 100);
  while (engine.step().num_seqs() < 6) continue;
  engine.step([&] { engine.abort(1); });
  engine.scheduler.check_invariants();
  engine.run();
  CHECK_EQ(engine.requests[1].reason, FinishReason::kAbort);
  CHECK_EQ(engine.requests[2].reason, FinishReason::kLength);
}

TEST(speculation, no_deadline_is_missed_for_a_guess) {
  SchedulerConfig config = config_of(8);
  config.policy = "hocket";
  RepeatingEngine engine(config);
  RequestSpec spec;
  spec.id = 1;
  spec.max_tokens = 100;
  spec.targets.itl = 0.0135;  // of 11 ms for a token and 1 ms for each guess
  engine.add(spec, {1, 2, 3});
  engine.pause = 0.0;
  while (engine.scheduler.has_work()) {
    engine.step([&](const BatchPlan& plan) { engine.now += 0.010 + 0.001 * plan.num_tokens(); });
  }
  CHECK(engine.num_guessed > 0);
  CHECK(num_steps(engine) + engine.num_guessed <= 100 + 3 * num_steps(engine));
}

// What the request will say next. REQUIRES: it is asked between two steps.
Tokens next_tokens(const FakeEngine& engine, uint64_t id, int32_t num) {
  const auto& request = engine.requests.at(id);
  const Tokens all = engine.expected_output(request);
  const auto begin = all.begin() + std::ssize(request.output);
  return {begin, begin + std::min<std::ptrdiff_t>(num, all.end() - begin)};
}

struct UnrepeatingEngine : FakeEngine {
  explicit UnrepeatingEngine(const SchedulerConfig& config) : FakeEngine(config, 50, linear_seconds(0.010, 0.001)) {
    pause = 0.02;
  }
  bool force(uint64_t id, Tokens tokens) { return scheduler.force(id, tokens); }
};

TEST(speculation, forced_tokens_and_the_one_behind_them_take_one_step) {
  for (const bool is_guessable : {true, false}) {
    UnrepeatingEngine engine(config_of(8));
    RequestSpec spec;
    spec.id = 1;
    spec.max_tokens = 40;
    spec.is_guessable = is_guessable;
    engine.add(spec, {1, 2, 3});
    engine.step();
    CHECK(engine.force(1, next_tokens(engine, 1, 5)));
    const BatchPlan plan = engine.step();
    CHECK_EQ(plan.num_seqs(), 6);
    CHECK_EQ(plan.sample_seqs.size(), 6);
    CHECK_EQ(engine.output(1).size(), 7);
    CHECK_EQ(engine.step().num_seqs(), 1);  // they counted once
    engine.run();
    CHECK_EQ(num_right(engine), 5);
    CHECK_EQ(engine.num_guessed, 5);
  }
}

TEST(speculation, forced_tokens_are_compared_with_what_is_sampled) {
  UnrepeatingEngine engine(config_of(8));
  engine.add(1, {1, 2, 3}, 40);
  engine.step();
  Tokens tokens = next_tokens(engine, 1, 5);
  tokens[2] ^= 1;
  engine.force(1, tokens);
  CHECK_EQ(engine.step().num_seqs(), 6);
  CHECK_EQ(engine.output(1).size(), 4);
  engine.run();  // the engine compares with what must have been answered
  CHECK_EQ(num_right(engine), 2);
}

TEST(speculation, forced_tokens_are_no_more_than_guesses_may_be) {
  UnrepeatingEngine engine(config_of(3));
  UnrepeatingEngine full(config_of(8, 64, 5));
  for (UnrepeatingEngine* one : {&engine, &full}) {
    for (uint64_t id = 1; id < 5; ++id) one->add(id, {1, 2, 4}, 60);
    one->step();
    one->force(1, next_tokens(*one, 1, 6));
    CHECK_EQ(one->step().num_seqs(), one == &engine ? 4 + 3 : 5);
    one->run();
  }
}

TEST(speculation, no_deadline_is_missed_for_a_forced_token) {
  SchedulerConfig config = config_of(8);
  config.policy = "hocket";
  UnrepeatingEngine engine(config);
  RequestSpec spec;
  spec.id = 1;
  spec.max_tokens = 60;
  spec.targets.itl = 0.0135;  // of 11 ms for a token and 1 ms for each forced one
  engine.add(spec, {1, 2, 3});
  engine.pause = 0.0;
  while (engine.scheduler.has_work()) {
    engine.force(1, next_tokens(engine, 1, 6));
    const BatchPlan plan = engine.step([&](const BatchPlan& p) { engine.now += 0.010 + 0.001 * p.num_tokens(); });
    CHECK(plan.num_seqs() <= 4);
  }
  CHECK(engine.num_guessed > 10);
}

TEST(speculation, forced_tokens_wait_for_their_request_and_no_longer) {
  SchedulerConfig config = config_of(8, 12, 4);
  UnrepeatingEngine engine(config);
  engine.add(1, {1, 2, 3}, 40);
  engine.step();
  engine.force(1, next_tokens(engine, 1, 5));
  engine.force(1, {});
  CHECK_EQ(engine.step().num_seqs(), 1);  // taken back
  const Tokens two = next_tokens(engine, 1, 2);
  engine.force(1, next_tokens(engine, 1, 4));
  engine.force(1, two);
  CHECK_EQ(engine.step().num_seqs(), 3);  // the last word counts
  engine.run();
}

TEST(speculation, forced_tokens_end_with_the_request) {
  for (int32_t max_tokens = 2; max_tokens < 8; ++max_tokens) {
    UnrepeatingEngine engine(config_of(8));
    engine.add(1, {1, 2, 3}, max_tokens);
    engine.step();
    engine.force(1, next_tokens(engine, 1, 5));
    engine.run();
    CHECK_EQ(std::ssize(engine.output(1)), max_tokens);
    CHECK(!engine.force(1, {1, 2}));  // it is gone
  }
}

TEST(speculation, forced_tokens_of_nobody_or_where_nothing_is_guessed_are_not_kept) {
  UnrepeatingEngine engine(config_of(8));
  UnrepeatingEngine off(config_of(0));
  for (UnrepeatingEngine* one : {&engine, &off}) {
    one->add(1, {1, 2, 3}, 10);
    one->step();
  }
  CHECK(!engine.force(2, {1}));
  const Tokens known = next_tokens(engine, 1, 1);
  CHECK(!off.force(1, next_tokens(off, 1, 3)));
  CHECK_EQ(off.step().num_seqs(), 1);
  const Tokens none{1, -1};
  CHECK_THROWS(engine.force(1, none), CoreError);
  engine.step([&] { CHECK_THROWS(engine.force(1, known), CoreError); });
}

// Says the same whatever its prompt, and nothing twice in a text: what comes depends on the place.
struct RecitingEngine : FakeEngine {
  explicit RecitingEngine(const SchedulerConfig& config, double seconds = 0.010)
      : FakeEngine(config, 50, linear_seconds(seconds, seconds / 10)) {
    recites = true;
    pause = 0.02;
  }

  // How many steps that answer takes.
  int64_t ask(uint64_t id, const std::string& tenant = "", const std::string& salt = "", bool is_guessable = true) {
    const int64_t before = num_steps(*this);
    RequestSpec spec;
    spec.id = id;
    spec.max_tokens = 60;
    spec.tenant = tenant;
    spec.is_guessable = is_guessable;
    add(spec, {1, 2, 3}, salt);
    run();
    return num_steps(*this) - before;
  }
};

// A small model that is asked before every step, and says what comes unless it is wrong.
struct AskingEngine : UnrepeatingEngine {
  explicit AskingEngine(const SchedulerConfig& config, double model_seconds = 1e-4) : UnrepeatingEngine(config) {
    pause = 0.0;
    scheduler.note_model(1, 1, model_seconds);
  }
  BatchPlan step() {
    const ModelQuestion& question = scheduler.ask_model(now);
    num_asked = static_cast<int32_t>(question.slots.size());
    depth = question.num_tokens;
    for (const Slot slot : question.slots) {
      const uint64_t id = scheduler.requests().id[slot];
      Tokens tokens = next_tokens(*this, id, depth);
      if (is_wrong) tokens[0] ^= 1;
      CHECK(scheduler.suggest(id, tokens));
    }
    return UnrepeatingEngine::step([&](const BatchPlan& plan) { now += 0.010 + 0.001 * (plan.num_tokens() + depth); });
  }
  void run() {
    while (scheduler.has_work()) step();
  }

  bool is_wrong = false;
  int32_t num_asked = 0;  // of the last step
  int32_t depth = 0;
};

TEST(speculation, what_a_small_model_says_is_computed_in_one_step) {
  AskingEngine engine(config_of(8));
  engine.add(1, {1, 2, 3}, 40);
  engine.step();
  const BatchPlan plan = engine.step();
  CHECK_EQ(engine.num_asked, 1);
  CHECK(engine.depth > 1);
  CHECK_EQ(plan.num_seqs(), 1 + engine.depth);
  CHECK_EQ(engine.output(1).size(), 2 + engine.depth);
  engine.run();
  CHECK_EQ(engine.output(1).size(), 40);
  CHECK(num_steps(engine) < 15);
}

TEST(speculation, a_small_model_that_is_wrong_is_asked_now_and_then_only) {
  AskingEngine engine(config_of(8));
  engine.is_wrong = true;
  for (uint64_t id = 0; id < 12; ++id) {
    engine.add(id, {1, 2, static_cast<int32_t>(id)}, 100);
    engine.run();
  }
  CHECK_EQ(num_right(engine), 0);
  CHECK(engine.num_guessed > 3);
  CHECK(engine.num_guessed < 60);
  engine.is_wrong = false;  // it is noticed again
  for (uint64_t id = 20; id < 60; ++id) {
    engine.add(id, {1, 2, static_cast<int32_t>(id)}, 100);
    engine.run();
  }
  CHECK(num_right(engine) > 500);
}

TEST(speculation, a_small_model_that_is_slow_or_unmeasured_is_not_asked) {
  AskingEngine slow(config_of(8), 0.1);
  AskingEngine unknown(config_of(8), 0.0);
  for (AskingEngine* engine : {&slow, &unknown}) {
    engine->add(1, {1, 2, 3}, 40);
    engine->run();
  }
  CHECK_EQ(unknown.num_guessed, 0);
  CHECK_EQ(slow.num_guessed, 0);
}

TEST(speculation, beside_prompts_no_small_model_is_asked) {
  AskingEngine engine(config_of(8));
  engine.add(1, {1, 2, 3}, 60);
  engine.step();
  engine.step();
  CHECK_EQ(engine.num_asked, 1);
  engine.add(2, {1, 2, 4}, 60);
  engine.step();
  CHECK_EQ(engine.num_asked, 0);
  engine.step();
  CHECK(engine.num_asked > 0);
  engine.run();
}

TEST(speculation, a_form_goes_before_a_small_model) {
  AskingEngine engine(config_of(8));
  engine.add(1, {1, 2, 3}, 40);
  engine.step();
  engine.force(1, next_tokens(engine, 1, 5));
  engine.step();
  CHECK_EQ(engine.num_asked, 0);
  CHECK_EQ(engine.output(1).size(), 7);
}

TEST(speculation, who_cannot_be_guessed_is_no_question_to_a_small_model) {
  AskingEngine engine(config_of(8));
  RequestSpec spec;
  spec.id = 1;
  spec.max_tokens = 40;
  spec.is_guessable = false;
  engine.add(spec, {1, 2, 3});
  engine.run();
  CHECK_EQ(engine.num_guessed, 0);
}

TEST(speculation, no_deadline_is_missed_for_a_small_model) {
  SchedulerConfig config = config_of(8);
  config.policy = "hocket";
  AskingEngine engine(config, 0.001);
  RequestSpec spec;
  spec.id = 1;
  spec.max_tokens = 60;
  spec.targets.itl = 0.0155;  // of 11 ms for a token and 2 ms for each that is guessed
  engine.add(spec, {1, 2, 3});
  engine.step();
  while (engine.scheduler.has_work()) {
    engine.step();
    CHECK(engine.depth <= 2);
  }
  CHECK(engine.num_guessed > 5);
}

TEST(speculation, suggestions_of_nobody_or_where_nothing_is_guessed_are_not_kept) {
  UnrepeatingEngine engine(config_of(8));
  UnrepeatingEngine plain(config_of(0));
  for (UnrepeatingEngine* one : {&engine, &plain}) {
    one->add(1, {1, 2, 3}, 40);
    one->step();
  }
  CHECK(!engine.scheduler.suggest(7, Tokens{1}));
  CHECK(!plain.scheduler.suggest(1, Tokens{1}));
  CHECK_THROWS(engine.scheduler.suggest(1, Tokens{-1}), CoreError);
  CHECK_EQ(plain.scheduler.ask_model(plain.now).num_tokens, 0);
}

TEST(speculation, an_answer_like_an_earlier_one_takes_fewer_steps) {
  RecitingEngine engine(config_of(8));
  CHECK_EQ(engine.ask(1), 60);
  CHECK(engine.ask(2) < 30);
  CHECK(engine.ask(3) < 15);
}

TEST(speculation, who_has_another_tenant_or_salt_is_guessed_as_if_nobody_had_asked) {
  for (const auto& [tenant, salt] : {std::pair{"other", "salt"}, {"tenant", "other"}, {"tenants", "alt"}}) {
    RecitingEngine alone(config_of(8));
    RecitingEngine after(config_of(8));
    for (uint64_t id = 1; id < 5; ++id) after.ask(id, "tenant", "salt");
    for (uint64_t id = 5; id < 8; ++id) CHECK_EQ(after.ask(id, tenant, salt), alone.ask(id, tenant, salt));
  }
}

// Whether somebody else's answers are kept or not, and how often guesses at them are right.
TEST(speculation, what_another_tenant_says_changes_no_step_of_a_request) {
  std::vector<std::vector<int32_t>> positions[2];
  for (const bool is_kept : {false, true}) {
    RecitingEngine engine(config_of(8));
    for (uint64_t round = 0; round < 4; ++round) {
      engine.ask(100 + round, "victim", "", is_kept);
      RequestSpec spec;
      spec.id = round;
      spec.max_tokens = 40;
      spec.tenant = "spy";
      engine.add(spec, {1, 2, 3});
      while (engine.scheduler.has_work()) positions[is_kept].push_back(engine.step().positions);
    }
  }
  CHECK(positions[0] == positions[1]);
}

TEST(speculation, without_a_prefix_cache_no_text_is_kept_for_others) {
  SchedulerConfig config = config_of(8);
  config.enable_prefix_caching = false;
  RecitingEngine engine(config);
  for (uint64_t id = 1; id < 4; ++id) CHECK_EQ(engine.ask(id), 60);
}

TEST(speculation, with_the_prefix_cache_texts_are_forgotten) {
  RecitingEngine engine(config_of(8));
  engine.ask(1);
  CHECK(engine.ask(2) < 60);
  engine.scheduler.reset_prefix_cache();
  CHECK_EQ(engine.ask(3), 60);
}

TEST(speculation, who_cannot_be_guessed_leaves_no_text_and_uses_none) {
  RecitingEngine engine(config_of(8));
  CHECK_EQ(engine.ask(1, "", "", false), 60);
  CHECK_EQ(engine.ask(2), 60);
  CHECK_EQ(engine.ask(3, "", "", false), 60);
}

TEST(speculation, where_looking_takes_long_who_is_right_is_looked_at_every_time) {
  RecitingEngine engine(config_of(8, 256, 64), 1e-6);  // of eight requests one in eight steps
  CHECK_EQ(engine.ask(1), 60);
  for (uint64_t id = 2; id < 10; ++id) engine.add(id, {1, 2, 3}, 60);
  const int64_t before = num_steps(engine);
  engine.run();
  CHECK(num_steps(engine) - before < 40);
  CHECK(num_right(engine) > 8 * 30);
}

TEST(speculation, needs_all_cache_as_keys_and_values) {
  SchedulerConfig config = config_of(8);
  config.hidden_units_per_group = 1;
  CHECK_THROWS(config.validate(), std::invalid_argument);
}

}  // namespace
}  // namespace hocket
