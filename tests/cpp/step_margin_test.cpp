#include "estimates/step_margin.h"

#include <cmath>

#include "testing.h"

namespace hocket {
namespace {

constexpr double kLimit = 0.050;  // seconds

double after(StepMargin margin, int num_steps, double measured) {
  for (int i = 0; i < num_steps; ++i) margin.observe(0.040, measured, kLimit);
  return margin.value();
}

TEST(step_margin, follows_a_longer_step_at_once_and_expects_worse) {
  CHECK(std::abs(after(StepMargin(), 1, 0.060) - 1.65) < 1e-12);
  CHECK(std::abs(after(StepMargin(), 1, 4.0) - 2.3) < 1e-12);
}

TEST(step_margin, forgets_its_first_value_soon_and_what_it_saw_slowly) {
  CHECK_EQ(StepMargin(2.3).value(), 2.3);
  CHECK(after(StepMargin(2.3), 1000, 0.040) < 1.1);
  CHECK_EQ(after(StepMargin(2.3), 2000, 0.040), StepMargin::kLeast);
  StepMargin margin;
  margin.observe(0.040, 0.080, kLimit);
  CHECK(after(margin, 1000, 0.040) > 2.2);
  CHECK(after(margin, 100000, 0.040) < 1.1);
}

TEST(step_margin, short_steps_say_nothing) {
  StepMargin margin;
  margin.observe(0.001, 0.010, kLimit);
  margin.observe(0.0, 0.010, kLimit);
  CHECK_EQ(margin.value(), StepMargin::kLeast);
}

}  // namespace
}  // namespace hocket
