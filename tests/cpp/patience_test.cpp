#include "requests/patience.h"

#include <cmath>

#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

constexpr double kUsual = 0.020, kPromised = 0.022;

// T is 8.192 s.
Estimates estimates() { return testing::linear_seconds(0.0, 0.001); }

bool is_near(double a, double b) { return std::abs(a - b) < 1e-9; }

TEST(patience, nobody_waits) { CHECK_EQ(Patience(estimates()).seconds(kUsual, kPromised, 0.010), kUsual); }

TEST(patience, prompts_that_can_come_in_time_get_the_share_that_they_need) {
  Patience patience(estimates());
  const double left = 0.9 * 8.192 - 1.0;
  patience.add(0.6 * left, 1.0);
  CHECK(is_near(patience.seconds(kUsual, kPromised, 0.010), 0.025));
  patience.add(0.15 * left, 1.0);
  CHECK(is_near(patience.seconds(kUsual, kPromised, 0.010), 0.040));
  CHECK(is_near(patience.seconds(kUsual, kPromised, 0.030), 4 * kPromised));
}

TEST(patience, who_cannot_come_in_time_takes_nothing_from_readers_until_it_is_late) {
  Patience patience(estimates());
  patience.add(5.0, 7.0);
  CHECK_EQ(patience.seconds(kUsual, kPromised, 0.010), kUsual);
  patience.add(1.0, 0.0);  // behind that one, in time all the same
  CHECK(is_near(patience.seconds(kUsual, kPromised, 0.010), 0.010 / (1 - 6.0 / 7.3728)));
  CHECK(!patience.is_full());
  patience.add(2.0, 0.0);
  CHECK(patience.is_full());
  patience.add(1.0, 0.0);
  CHECK(is_near(patience.seconds(kUsual, kPromised, 0.010), 0.010 / (1 - 6.0 / 7.3728)));
}

TEST(patience, prompts_have_the_share_of_those_who_wait_for_a_first_token_and_four_ninths_at_least) {
  Patience patience(estimates());
  CHECK_EQ(patience.stretch(4), 1.8);
  for (int i = 0; i < 3; ++i) patience.add(20.0, 0.0);
  CHECK_EQ(patience.stretch(4), 1.8);
  for (int i = 0; i < 5; ++i) patience.add(20.0, 0.0);
  CHECK(is_near(patience.stretch(4), 3.0));
  CHECK(is_near(patience.stretch(0), 9.0));
}

TEST(patience, who_is_late_stretches_steps_by_the_square_of_its_wait) {
  Patience patience(estimates());
  patience.add(0.1, 1.5 * 8.192);
  CHECK(is_near(patience.seconds(kUsual, kPromised, 0.010), 2.25 * kUsual));
  patience.add(0.1, 5 * 8.192);
  CHECK(is_near(patience.seconds(kUsual, kPromised, 0.010), 4 * kUsual));
}

}  // namespace
}  // namespace hocket
