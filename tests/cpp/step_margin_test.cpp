#include "step_margin.h"

#include "testing.h"

namespace hocket {
namespace {

constexpr double kLimit = 0.050;  // seconds

TEST(step_margin, follows_a_longer_step_at_once) {
  StepMargin margin;
  margin.observe(0.040, 0.060, kLimit);
  CHECK_EQ(margin.value(), 1.5);
  margin.observe(0.040, 0.400, kLimit);
  CHECK_EQ(margin.value(), StepMargin::kMost);
}

TEST(step_margin, forgets_its_first_value_soon_and_what_it_saw_later_slowly) {
  StepMargin margin(1.5);
  for (int i = 0; i < 1000; ++i) margin.observe(0.040, 0.040, kLimit);
  CHECK(margin.value() < 1.1);
  for (int i = 0; i < 100000; ++i) margin.observe(0.040, 0.040, kLimit);
  CHECK_EQ(margin.value(), StepMargin::kLeast);
  margin.observe(0.040, 0.080, kLimit);
  for (int i = 0; i < 1000; ++i) margin.observe(0.040, 0.040, kLimit);
  CHECK(margin.value() > 1.9);
}

TEST(step_margin, short_steps_say_nothing) {
  StepMargin margin;
  margin.observe(0.001, 0.010, kLimit);
  margin.observe(0.0, 0.010, kLimit);
  CHECK_EQ(margin.value(), StepMargin::kLeast);
}

TEST(step_margin, larger_values_are_kept_out_whatever_it_begins_with) {
  StepMargin margin(10.0);
  CHECK_EQ(margin.value(), StepMargin::kMost);
  margin.observe(0.040, 0.040, kLimit);
  CHECK_EQ(margin.value(), StepMargin::kMost);
}

}  // namespace
}  // namespace hocket
