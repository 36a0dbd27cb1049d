#include "estimates/step_margin.h"

#include <cmath>
#include <random>

#include "testing.h"

namespace hocket {
namespace {

constexpr double kLimit = 0.050;  // seconds

void observe(StepMargin* margin, int num_steps, double measured) {
  for (int i = 0; i < num_steps; ++i) margin->observe(0.040, measured, kLimit);
}

// Of steps whose times differ from 40 ms by a normal error.
StepMargin after_noise(double quantile, double deviation, int num_steps) {
  std::mt19937 random(1);
  std::normal_distribution<double> error(1.0, deviation);
  StepMargin margin;
  margin.set_quantile(quantile);
  for (int i = 0; i < num_steps; ++i) margin.observe(0.040, 0.040 * std::max(0.5, error(random)), kLimit);
  return margin;
}

TEST(step_margin, is_the_quantile_of_what_steps_took) {
  CHECK(std::abs(after_noise(0.999, 0.10, 40000).value() - 1.309) < 0.03);
  CHECK(std::abs(after_noise(0.99, 0.10, 40000).value() - 1.233) < 0.02);
  CHECK(std::abs(after_noise(0.9, 0.10, 40000).value() - 1.128) < 0.02);
  CHECK_EQ(after_noise(0.5, 0.10, 40000).value(), StepMargin::kLeast);
  CHECK(std::abs(after_noise(0.5, 0.10, 40000).of_readers() - 1.233) < 0.02);
}

// Where there are too few steps to tell the quantile, their tail is continued: not the largest of them.
TEST(step_margin, expects_worse_than_it_has_seen_few_steps_of) {
  const double margin = after_noise(0.999, 0.10, 300).value();
  CHECK(margin > 1.25);
  CHECK(margin < 1.45);
}

TEST(step_margin, one_accident_in_thousands_of_steps_is_no_habit) {
  StepMargin margin;
  observe(&margin, 15000, 0.040);
  observe(&margin, 1, 0.400);
  CHECK(margin.value() < 1.1);
  observe(&margin, 30, 0.060);
  CHECK(std::abs(margin.value() - 1.5) < 0.02);
  observe(&margin, 100000, 0.040);
  CHECK_EQ(margin.value(), StepMargin::kLeast);
}

TEST(step_margin, a_machine_that_only_does_worse_is_followed_up_to_a_limit) {
  StepMargin margin;
  observe(&margin, 50, 4.0);
  CHECK_EQ(margin.value(), StepMargin::kWorst);
}

TEST(step_margin, forgets_its_first_value_soon) {
  CHECK_EQ(StepMargin(2.3).value(), 2.3);
  StepMargin margin(2.3);
  observe(&margin, 100, 0.040);
  CHECK(margin.value() > 1.8);
  observe(&margin, 1900, 0.040);
  CHECK_EQ(margin.value(), StepMargin::kLeast);
}

TEST(step_margin, short_steps_say_nothing) {
  StepMargin margin;
  margin.observe(0.001, 0.010, kLimit);
  margin.observe(0.0, 0.010, kLimit);
  margin.observe(0.040, 0.0, kLimit);
  CHECK_EQ(margin.value(), StepMargin::kLeast);
}

}  // namespace
}  // namespace hocket
