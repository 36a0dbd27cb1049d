#include "requests/long_steps.h"

#include "policy_world.h"

namespace hocket {
namespace {

using testing::linear_seconds;
using testing::Names;
using testing::PolicyWorld;
using testing::world_config;

constexpr double kPromised = 0.022, kKept = 0.020;
constexpr double kWanted = 0.030;  // by prompts, evenly

int64_t steps_until_a_long_one(LongSteps* steps, double wanted, double promised = kPromised) {
  for (int64_t n = 1; n <= 2 * LongSteps::kEvery; ++n) {
    if (steps->seconds(wanted, kKept, promised) > wanted) return n;
  }
  return 0;
}

TEST(long_steps, one_in_many_is_as_long_as_it_may_be) {
  LongSteps steps;
  for (int i = 0; i < 3; ++i) CHECK_EQ(steps_until_a_long_one(&steps, kWanted), LongSteps::kEvery);
  for (int64_t i = 1; i < LongSteps::kEvery; ++i) CHECK_EQ(steps.seconds(kWanted, kKept, kPromised), kWanted);
  CHECK_EQ(steps.seconds(kWanted, kKept, kPromised), Patience::kMostStretch * kPromised);
}

TEST(long_steps, nothing_is_long_while_what_is_promised_suffices) {
  LongSteps steps;
  CHECK_EQ(steps_until_a_long_one(&steps, kKept), 0);
  // And it comes as soon as it does not.
  CHECK_EQ(steps_until_a_long_one(&steps, kWanted), 1);
}

TEST(long_steps, no_step_is_made_longer_than_is_noticed) {
  LongSteps steps;
  for (int64_t i = 0; i < LongSteps::kEvery; ++i) steps.seconds(kKept, kKept, kPromised);
  CHECK_EQ(steps.seconds(kWanted, kKept, 0.1), LongSteps::kMostSeconds);
  CHECK_EQ(steps_until_a_long_one(&steps, 0.3, 0.2), 0);
}

// A step takes 30.5 ms and 1 ms per token, and readers are promised 77 ms. After 1.6 s the first prompt is due.
TEST(long_steps, prompts_that_press_have_one_step_in_many_beside_readers) {
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
    for (int64_t i = 1; i <= LongSteps::kEvery + 1; ++i) {
      CHECK_EQ(w.grants() == long_one, told == 0 && i == LongSteps::kEvery);
    }
  }
}

}  // namespace
}  // namespace hocket
