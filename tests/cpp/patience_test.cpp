#include "requests/patience.h"

#include <cmath>

#include "policy_world.h"
#include "requests/prompt_share.h"
#include "testing.h"

namespace hocket {
namespace {

constexpr double kUsual = 0.020, kPromised = 0.022;
constexpr double kLong = 10.0;  // alone: due at T

// T is 8.192 s.
Estimates estimates() { return testing::linear_seconds(0.0, 0.001); }

bool is_near(double a, double b) { return std::abs(a - b) < 1e-9; }

// Where nobody is due.
double seconds(const Patience& patience, double decode_seconds) {
  return patience.seconds(kUsual, kUsual, kPromised, decode_seconds);
}

TEST(patience, nobody_waits) {
  CHECK_EQ(seconds(Patience(estimates()), 0.010), kUsual);
  CHECK_EQ(Patience(estimates()).leniency(), 1.0);
}

TEST(patience, prompts_that_can_come_in_time_get_the_share_that_they_need) {
  Patience patience(estimates());
  const double left = 0.9 * 8.192 - 1.0;
  patience.add(0.6 * left, 1.0, kLong);
  CHECK(is_near(seconds(patience, 0.010), 0.025));
  patience.add(0.15 * left, 1.0, kLong);
  CHECK(is_near(seconds(patience, 0.010), 0.040));
  CHECK(is_near(seconds(patience, 0.060), 8 * kPromised));
}

TEST(patience, who_cannot_come_in_time_takes_nothing_from_readers_until_it_is_late) {
  Patience patience(estimates());
  patience.add(5.0, 7.0, kLong);
  CHECK_EQ(seconds(patience, 0.010), kUsual);
  patience.add(1.0, 0.0, kLong);  // behind that one, in time all the same
  CHECK(is_near(seconds(patience, 0.010), 0.010 / (1 - 6.0 / 7.3728)));
  CHECK(!patience.is_full());
  patience.add(2.0, 0.0, kLong);
  CHECK(patience.is_full());
  patience.add(1.0, 0.0, kLong);
  CHECK(is_near(seconds(patience, 0.010), 0.010 / (1 - 6.0 / 7.3728)));
}

TEST(patience, prompts_have_the_share_of_those_who_wait_for_a_first_token_and_four_ninths_at_least) {
  Patience patience(estimates());
  CHECK_EQ(patience.stretch(4), 1.8);
  for (int i = 0; i < 3; ++i) patience.add(20.0, 0.0, kLong);
  CHECK_EQ(patience.stretch(4), 1.8);
  for (int i = 0; i < 5; ++i) patience.add(20.0, 0.0, kLong);
  CHECK(is_near(patience.stretch(4), 3.0));
  CHECK(is_near(patience.stretch(0), 9.0));
}

TEST(patience, who_is_late_stretches_steps_at_once) {
  Patience patience(estimates());
  patience.add(0.1, 1.5 * 8.192, kLong);
  CHECK_EQ(seconds(patience, 0.010), kUsual);
  patience.add(0.1, 1.51 * 8.192, kLong);
  CHECK(is_near(seconds(patience, 0.010), 8 * kUsual));
}

TEST(patience, a_prompt_is_due_after_four_times_what_it_takes_alone_a_second_at_least) {
  const auto leniency = [](double alone_seconds, double waited_seconds) {
    Patience patience(estimates());
    patience.add(0.1, waited_seconds, alone_seconds);
    return patience.leniency();
  };
  CHECK_EQ(leniency(0.1, 1.0), 1.0);
  CHECK(is_near(leniency(0.1, 1.5), 2.25));
  CHECK(is_near(leniency(1.0, 6.0), 2.25));
  CHECK(is_near(leniency(kLong, 1.5 * 8.192), 2.25));
  CHECK_EQ(leniency(0.1, 100.0), 8.0);
}

TEST(patience, steps_take_what_is_promised_to_who_is_due_and_no_more_than_the_share) {
  Patience patience(estimates());
  patience.add(20.0, 1.5, 0.1);
  CHECK_EQ(patience.seconds(kUsual, 0.030, kPromised, 0.010), 0.030);
  Estimates machine = testing::linear_seconds(0.050, 0.001);
  const double kept = machine.itl_seconds(32) / machine.margin.of_readers();
  CHECK(is_near(machine.step_seconds(32, kept, 1.8), kept));
  CHECK(is_near(machine.step_seconds(32, kept, 1.8, 1.5), 1.5 * kept));
  CHECK(is_near(machine.step_seconds(32, kept, 1.8, 4.0), 1.8 * kept));
}

TEST(patience, decodes_have_less_of_the_time_than_lately_while_somebody_is_due) {
  const auto stretch = [](double prompt_share, double waited_seconds) {
    Patience patience(estimates(), prompt_share);
    patience.add(0.1, waited_seconds, 0.1);
    return patience.stretch(10);
  };
  CHECK_EQ(stretch(0.5, 0.9), 1.8);
  CHECK(is_near(stretch(0.45, 1.1), 2.0));
  CHECK_EQ(stretch(0.1, 1.1), 1.8);
  CHECK_EQ(stretch(0.6, 1.1), 2.2);
  CHECK_EQ(stretch(1.0, 1.1), 2.2);
}

// Of 6000 tokens the first token is expected after 24 s, of 100 after 16.4.
TEST(patience, a_long_prompt_lets_short_ones_go_first_that_come_a_little_later) {
  using testing::Names;
  const auto grants = [](double arrival, int32_t num_tokens) {
    SchedulerConfig config = testing::world_config("hocket");
    config.num_units = 5000;
    config.max_model_len = 8000;
    testing::PolicyWorld w(config);
    w.now = 10.0;
    w.estimates = estimates();
    w.max_num_tokens = 500;
    w.waits("long", {.num_prompt = 6000});
    w.waits("later", {.arrival = arrival, .num_prompt = num_tokens, .first_token = 10000});
    return w.grants();
  };
  CHECK_EQ(grants(7.5, 100), (Names{"later+100", "long+400"}));
  CHECK_EQ(grants(7.7, 100), (Names{"long+500"}));
  CHECK_EQ(grants(1e-3, 6000), (Names{"long+500"}));
}

TEST(patience, a_share_is_that_of_the_last_hundred_steps) {
  PromptShare share;
  CHECK_EQ(share.value(), 0.0);
  share.note_step(0.0, 0.0);  // while nothing is known of step times
  CHECK_EQ(share.value(), 0.0);
  share.note_step(0.010, 0.040);
  CHECK(is_near(share.value(), 0.75));
  for (int i = 0; i < 1000; ++i) share.note_step(0.030, 0.040);
  CHECK(std::abs(share.value() - 0.25) < 1e-4);
}

}  // namespace
}  // namespace hocket
