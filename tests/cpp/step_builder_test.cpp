#include "stages/step_builder.h"

#include <optional>
#include <random>

#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::Names;
using testing::PolicyWorld;
using testing::RequestOf;

// A step of 10 ms + 1 ms per token, of 64 tokens at most.
struct Step {
  PolicyWorld world;
  Composition composition;
  StepBuilder builder{world.config};
  std::optional<Snapshot> snapshot;  // outlives the step

  Step() { world.estimates = linear_seconds(0.010, 0.001); }

  void begin() { builder.begin(snapshot.emplace(world.snapshot()), &composition); }
  Names grants() const { return world.grants(composition); }
};

RequestOf prompt_of(int32_t num_prompt) { return {.num_prompt = num_prompt}; }

TEST(step_builder, a_step_without_limit_is_full_when_its_tokens_are_spent) {
  Step s;
  const Slot decode = s.world.runs("decode");
  const Slot chunk = s.world.runs("chunk", 30, prompt_of(40));
  const Slot arrival = s.world.waits("arrival", prompt_of(50));
  s.begin();
  s.builder.decode(decode);
  CHECK_EQ(s.builder.prefill(chunk, {}, false), 30);
  CHECK_EQ(s.builder.prefill(arrival, {}, false), 33);
  CHECK_EQ(s.builder.tokens_left(), 0);
  CHECK_EQ(s.builder.num_advanced(), 64.0);
  s.builder.decode(decode);
  CHECK(!s.builder.try_decode(decode));
  CHECK_EQ(s.builder.prefill(chunk, {}, false), 0);
  CHECK_EQ(s.grants(), (Names{"decode:1", "chunk:30", "arrival+33"}));
}

TEST(step_builder, a_chunk_fills_the_time_that_is_left) {
  Step s;
  const Slot decode = s.world.runs("decode");
  const Slot arrival = s.world.waits("arrival", prompt_of(50));
  s.begin();
  s.builder.decode(decode);
  s.builder.limit_seconds(0.0305);  // 10 + 1 + 19 ms, and half a token
  CHECK_EQ(s.builder.prefill(arrival, {}, false), 19);
  CHECK(s.builder.seconds() <= 0.0305);
  CHECK(!s.builder.try_decode(decode));
  CHECK_EQ(s.grants(), (Names{"decode:1", "arrival+19"}));
}

TEST(step_builder, a_decode_that_is_granted_asks_no_limit_and_one_that_is_tried_keeps_it) {
  Step s;
  const Slot first = s.world.runs("first");
  const Slot second = s.world.runs("second");
  s.begin();
  s.builder.limit_seconds(0.0105);
  s.builder.decode(first);
  CHECK(!s.builder.try_decode(second));
  CHECK_EQ(s.builder.batch()->features().num_decodes, 1.0);  // the refused one has left no trace
  s.builder.limit_seconds(0.0125);
  CHECK(s.builder.try_decode(second));
  CHECK_EQ(s.grants(), (Names{"first:1", "second:1"}));
}

TEST(step_builder, a_whole_prompt_comes_all_or_not_at_all) {
  Step s;
  const Slot arrival = s.world.waits("arrival", prompt_of(50));
  s.begin();
  s.builder.limit_seconds(0.059);
  CHECK_EQ(s.builder.prefill(arrival, {}, true), 0);
  CHECK_EQ(s.grants(), Names{});
  CHECK_EQ(s.builder.batch()->features().num_chunks, 0.0);
  s.builder.limit_seconds(0.061);
  CHECK_EQ(s.builder.prefill(arrival, {}, true), 50);
}

TEST(step_builder, the_least_chunk_asks_no_limit) {
  Step s;
  const Slot chunk = s.world.runs("chunk", 30, prompt_of(40));
  s.begin();
  s.builder.limit_seconds(0.001);
  CHECK_EQ(s.builder.prefill(chunk, {}, false), 0);
  CHECK(s.builder.prefill_at_most(chunk, 20, false));
  CHECK(s.builder.prefill_at_most(chunk, 100, false));  // no more than there are
  CHECK_EQ(s.builder.tokens_left(), 14);
  CHECK(s.builder.prefill_at_most(chunk, 20, false));
  CHECK(!s.builder.prefill_at_most(chunk, 20, false));
  CHECK_EQ(s.grants(), (Names{"chunk:20", "chunk:30", "chunk:14"}));
}

TEST(step_builder, the_least_chunk_of_a_whole_prompt_is_all_of_it) {
  Step s;
  const Slot decode = s.world.runs("decode");
  const Slot fits = s.world.waits("fits", prompt_of(50));
  const Slot too_long_now = s.world.waits("too long now", prompt_of(64));
  const Slot too_long_ever = s.world.waits("too long ever", prompt_of(65));
  const auto grants = [&](Slot slot) {
    s.composition.clear();
    s.begin();
    s.builder.limit_seconds(0.001);
    s.builder.decode(decode);
    s.builder.prefill_at_most(slot, 20, true);
    return s.grants();
  };
  CHECK_EQ(grants(fits), (Names{"decode:1", "fits+50"}));
  CHECK_EQ(grants(too_long_now), (Names{"decode:1"}));
  CHECK_EQ(grants(too_long_ever), (Names{"decode:1", "too long ever+63"}));
}

TEST(step_builder, what_the_cache_holds_costs_nothing_and_counts_as_advanced) {
  Step s;
  s.world.is_cached(prompt_of(40));                              // 2 blocks of 16
  const Slot arrival = s.world.waits("arrival", prompt_of(40));  // the same tokens
  s.begin();
  CHECK_EQ(s.builder.prefill(arrival, {}, false), 8);
  CHECK_EQ(s.builder.num_advanced(), 40.0);
  CHECK_EQ(s.builder.tokens_left(), 56);
}

TEST(step_builder, what_the_host_holds_costs_nothing) {
  Step s;
  const Slot arrival = s.world.waits("arrival", prompt_of(40));
  s.world.table.num_saved_tokens[arrival] = 37;
  s.begin();
  CHECK_EQ(s.builder.prefill(arrival, {}, false), 3);
}

TEST(step_builder, a_form_reaches_the_grant) {
  Step s;
  const Slot arrival = s.world.waits("arrival", prompt_of(40));
  s.begin();
  s.builder.prefill(arrival, {CacheKind::kHidden, 0}, false);
  CHECK_EQ(s.grants(), (Names{"arrival+40(h)"}));
}

TEST(step_builder, begins_anew) {
  Step s;
  const Slot decode = s.world.runs("decode");
  s.begin();
  s.builder.limit_seconds(0.001);
  s.builder.decode(decode);
  s.composition.clear();
  s.begin();
  CHECK_EQ(s.builder.tokens_left(), 64);
  CHECK_EQ(s.builder.seconds(), 0.0);
  CHECK_EQ(s.builder.num_advanced(), 0.0);
  CHECK(s.builder.try_decode(decode));
}

// Bisection against trying every length.
TEST(step_builder, no_chunk_that_keeps_the_limit_is_longer) {
  std::mt19937 random(3);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  int32_t num_cut = 0;
  for (int32_t i = 0; i < 400; ++i) {
    Step s;
    LatencyCoefficients k;
    k.step_base = 0.001 * between(0, 20);
    k.prefill_floor = 0.001 * between(0, 20);
    k.prefill_pair = 1e-6 * between(0, 20);
    k.prefill_token = 1e-4 * between(0, 20);
    k.decode_seq = 0.001 * between(0, 5);
    k.overlap = 0.1 * between(0, 10);
    const LatencyModel model(LatencyForm::kCorrected, k);
    s.world.estimates.latency = model;
    s.world.max_num_tokens = between(2, 200);
    const int32_t num_prompt = between(2, 300);
    const int32_t num_left = between(2, num_prompt);
    const Slot decode = s.world.runs("decode");
    const Slot chunk = s.world.runs("chunk", num_left, prompt_of(num_prompt));
    const double limit = 0.001 * between(1, 100);
    s.begin();
    s.builder.decode(decode);
    s.builder.limit_seconds(limit);
    const int32_t num_tokens = s.builder.prefill(chunk, {}, false);

    int32_t longest = 0;
    for (int32_t n = 1; n <= std::min(num_left, s.world.max_num_tokens - 1); ++n) {
      LatencyBatch batch(1000);
      batch.add_decode(10);
      batch.add_chunk(num_prompt - num_left, n);
      if (model.predict(batch.features()) <= limit) longest = n;
    }
    CHECK_EQ(num_tokens, longest);
    num_cut += longest > 0 && longest < num_left;
  }
  CHECK(num_cut > 50);
}

}  // namespace
}  // namespace hocket
