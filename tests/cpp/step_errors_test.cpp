#include "simulation/step_errors.h"

#include <cmath>
#include <stdexcept>

#include "testing.h"

namespace hocket {
namespace {

constexpr std::array kQuantiles = {0.8, 0.95, 1.0, 1.1, 1.6};  // at 0, 1/4, 1/2, 3/4 and 1

std::vector<double> drawn(uint64_t seed, int32_t num_steps) {
  StepErrors errors(kQuantiles, seed);
  std::vector<double> ratios(num_steps);
  for (double& ratio : ratios) ratio = errors.next();
  return ratios;
}

TEST(step_errors, are_distributed_as_told) {
  std::vector<double> ratios = drawn(1, 400000);
  std::ranges::sort(ratios);
  for (size_t i = 1; i + 1 < kQuantiles.size(); ++i) {
    CHECK(std::abs(ratios[i * ratios.size() / 4] - kQuantiles[i]) < 0.01);
  }
  CHECK(ratios.front() >= kQuantiles.front());
  CHECK(ratios.back() <= kQuantiles.back());
  CHECK(std::abs(ratios[ratios.size() * 7 / 8] - 1.35) < 0.02);  // even between two of them
}

TEST(step_errors, last_for_some_steps) {
  const std::vector<double> ratios = drawn(2, 80000);
  int32_t num_changes = 1;
  for (size_t i = 1; i < ratios.size(); ++i) num_changes += ratios[i] != ratios[i - 1];
  CHECK(std::abs(80000.0 / num_changes - StepErrors::kSteps) < 0.4);
}

TEST(step_errors, are_the_same_for_the_same_seed) {
  CHECK(drawn(3, 1000) == drawn(3, 1000));
  CHECK(drawn(3, 1000) != drawn(4, 1000));
}

TEST(step_errors, without_a_distribution_steps_take_what_is_predicted) {
  StepErrors none({}, 0);
  for (int32_t i = 0; i < 100; ++i) CHECK_EQ(none.next(), 1.0);
  const std::array always = {1.25};
  StepErrors one(always, 0);
  CHECK_EQ(one.next(), 1.25);
}

TEST(step_errors, refuse_what_is_no_distribution) {
  for (const auto& wrong : {std::vector{1.0, 0.9}, std::vector{0.0, 1.0}, std::vector{-1.0}}) {
    CHECK_THROWS(StepErrors(wrong, 0), std::invalid_argument);
  }
}

}  // namespace
}  // namespace hocket
