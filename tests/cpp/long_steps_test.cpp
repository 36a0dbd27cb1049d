#include "requests/long_steps.h"

#include <algorithm>

#include "policy_world.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::Names;
using testing::PolicyWorld;
using testing::world_config;

constexpr double kPromised = 0.022, kKept = 0.020;
constexpr double kWanted = 0.030;  // by prompts, evenly

constexpr double kLongest = Patience::kMostStretch * kPromised;

// How many steps there are from here to one that is longer than prompts want; 0: none.
int64_t steps_until_a_long_one(LongSteps* steps, double wanted, double promised = kPromised) {
  for (int64_t n = 1; n <= 1000; ++n) {
    if (steps->seconds(wanted, kKept, promised) > wanted) return n;
  }
  return 0;
}

TEST(long_steps, what_prompts_lack_is_owed_and_paid_at_once) {
  LongSteps steps;
  constexpr int kSteps = 10'000;
  double wanted = 0, given = 0;
  int64_t num_long = 0;
  for (int i = 0; i < kSteps; ++i) {
    const double seconds = steps.seconds(kWanted, kKept, kPromised);
    CHECK(seconds == kKept || seconds == kLongest);
    num_long += seconds > kKept;
    wanted += kWanted;
    given += seconds;
  }
  // The same share of the time, but for what is owed last.
  CHECK(given <= wanted);
  CHECK(wanted - given < kLongest - kKept);
  CHECK_EQ(num_long, static_cast<int64_t>(kSteps * (kWanted - kKept) / (kLongest - kKept)));
}

TEST(long_steps, nothing_is_long_while_what_is_promised_suffices) {
  LongSteps steps;
  CHECK_EQ(steps_until_a_long_one(&steps, kKept), 0);
}

TEST(long_steps, nothing_is_owed_once_the_promise_suffices) {
  LongSteps steps;
  const int64_t num_steps = steps_until_a_long_one(&steps, kWanted);
  CHECK(num_steps > 2);
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 1; i < num_steps; ++i) CHECK_EQ(steps.seconds(kWanted, kKept, kPromised), kKept);
    CHECK_EQ(steps.seconds(kKept / 2, kKept, kPromised), kKept / 2);
  }
}

TEST(long_steps, no_step_is_made_longer_than_is_noticed) {
  LongSteps steps;
  double longest = 0;
  for (int i = 0; i < 1000; ++i) longest = std::max(longest, steps.seconds(kWanted, kKept, 0.1));
  CHECK_EQ(longest, LongSteps::kMostSeconds);
  // Where that is too little, steps are stretched evenly.
  CHECK_EQ(steps.seconds(0.3, kKept, 0.2), 0.3);
  CHECK_EQ(steps_until_a_long_one(&steps, 0.3, 0.2), 0);
}

TEST(long_steps, prompts_are_held_back_while_one_is_owed_once_long_ones_break_the_promise_alone) {
  LongSteps steps;
  steps.seconds(kWanted, kKept, kPromised);
  CHECK(!steps.holds_back());  // none was long yet
  for (int i = 0; i < 1000; ++i) {
    const bool is_long = steps.seconds(kWanted, kKept, kPromised) > kKept;
    CHECK(!(is_long && steps.holds_back()));
  }
  steps.seconds(kWanted, kKept, kPromised);
  CHECK(steps.holds_back());
  steps.nobody_reads();
  CHECK(!steps.holds_back());
  steps.seconds(kWanted, kKept, kPromised);
  CHECK(steps.holds_back());
  steps.seconds(kKept, kKept, kPromised);
  CHECK(!steps.holds_back());  // nothing is owed
}

TEST(long_steps, one_step_in_many_computes_all_who_wait_together) {
  LongSteps steps;
  constexpr double kTogether = LongSteps::kTogetherSeconds;
  CHECK_EQ(steps.seconds(kKept, kKept, kPromised, 0.04), kKept);  // no hundred steps yet
  for (int round = 0; round < 3; ++round) {
    for (int i = round == 0 ? 1 : 0; i < LongSteps::kEvery; ++i) {
      CHECK_EQ(steps.seconds(kKept, kKept, kPromised), kKept);
    }
    CHECK_EQ(steps.seconds(kKept, kKept, kPromised, kTogether + 0.001), kKept);  // too many
    CHECK_EQ(steps.seconds(kKept, kKept, kPromised, kKept), kKept);              // there is room for them anyway
    CHECK_EQ(steps.seconds(kKept, kKept, kPromised, 0.04), kTogether);
    CHECK_EQ(steps.seconds(kKept, kKept, kPromised, 0.04), kKept);
    CHECK_EQ(steps.seconds(kKept, kKept, 0.004, 0.04), kKept);  // longer than eight times the promise
  }
}

// A step takes 0.5 ms and 0.02 ms per token, and readers are promised 8 ms.
TEST(long_steps, where_as_many_wait_as_read_they_come_in_together) {
  for (const bool is_crowd : {true, false}) {
    SchedulerConfig config = world_config("hocket");
    config.max_decode_step_ms = 0;
    PolicyWorld w(config);
    w.estimates = linear_seconds(0.0005, 0.00002);
    w.max_num_tokens = 2000;
    w.runs("reader", 1, {.num_prompt = 40, .first_token = 1000});
    if (!is_crowd) {
      for (int i = 0; i < 3; ++i) w.runs("reader", 1, {.num_prompt = 40, .first_token = 1100 + 100 * i});
    }
    w.waits("a", {.num_prompt = 300});
    w.waits("b", {.num_prompt = 300, .first_token = 400});
    const auto num_tokens = [&] {
      int64_t n = 0;
      for (const std::string& grant : w.grants()) {
        if (!grant.starts_with("reader")) n += std::stoll(grant.substr(2));
      }
      return n;
    };
    for (int i = 0; i < LongSteps::kEvery; ++i) CHECK(num_tokens() < 600);
    CHECK_EQ(num_tokens() == 600, is_crowd);
    CHECK(num_tokens() < 600);
  }
}

// A step takes 30.5 ms and 1 ms per token, and readers are promised 77 ms. After 1.6 s the first prompt is due.
TEST(long_steps, prompts_that_press_have_a_long_step_now_and_then_beside_readers) {
  for (const double told : {0.0, 60.5}) {
    SchedulerConfig config = world_config("hocket");
    config.max_decode_step_ms = told;
    PolicyWorld w(config);
    w.now = 5.4;
    w.estimates = linear_seconds(0.0305, 0.001);
    w.max_num_tokens = 500;
    w.waits("later", {.arrival = 4.4, .num_prompt = 400, .first_token = 2000});
    w.waits("long", {.num_prompt = 400});
    w.runs("reader", 1, {.num_prompt = 40, .first_token = 1000});
    const Names long_one{"reader:1", "long+218"};  // 250 ms
    const Names kept{"reader:1", "long+41"};       // 77 ms, less a margin
    int num_long = 0, num_kept = 0;
    for (int i = 0; i < 100; ++i) {
      const Names grants = w.grants();
      num_long += grants == long_one;
      num_kept += grants == kept;
    }
    CHECK_EQ(num_long, told == 0 ? 12 : 0);
    CHECK_EQ(num_long + num_kept, told == 0 ? 100 : 0);
  }
}

// Decodes alone take what is promised. While long steps are rare, a prompt advances beside them all the same.
TEST(long_steps, prompts_that_no_step_has_room_for_wait_for_the_long_one) {
  SchedulerConfig config = world_config("hocket");
  config.max_decode_step_ms = 0;
  config.max_num_seqs = 2;
  config.max_model_len = 8192;
  config.num_units = 20'000;
  PolicyWorld w(config);
  w.now = 5.4;
  LatencyCoefficients k = linear_seconds(0.02, 0.0005).latency.coefficients();
  k.decode_context = 1e-5;
  w.estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  const double promised = w.estimates.itl_seconds(config.max_num_seqs);
  w.max_num_tokens = 500;
  w.waits("long", {.num_prompt = 400});
  w.runs("reader", 1,
         {.num_prompt = static_cast<int32_t>((promised - 0.0205) / k.decode_context), .first_token = 1000});
  const Names beside{"reader:1", "long+64"}, alone{"reader:1"};
  int num_beside = 0, num_alone = 0, num_long = 0;
  for (int i = 0; i < 1000; ++i) {
    const Names grants = w.grants();
    num_beside += grants == beside;
    num_alone += grants == alone;
    num_long += grants != beside && grants != alone;
    if (i == 0) CHECK_EQ(grants, beside);
  }
  CHECK(num_long >= 10);
  CHECK(num_alone > num_beside);
}

}  // namespace
}  // namespace hocket
