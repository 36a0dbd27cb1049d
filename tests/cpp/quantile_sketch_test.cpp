#include "estimates/quantile_sketch.h"

#include <cmath>
#include <random>
#include <vector>

#include "testing.h"

namespace hocket {
namespace {

// The least of the numbers that a share q of them does not exceed, each weighing `kept` times as much as the next.
double sorted_quantile(const std::vector<double>& values, double kept, double q) {
  std::vector<std::pair<double, double>> weighted;
  double weight = 1.0;
  for (const double value : values | std::views::reverse) {
    weighted.emplace_back(value, weight);
    weight *= kept;
  }
  std::ranges::sort(weighted);
  double all = 0.0, below = 0.0;
  for (const auto& [value, of_value] : weighted) all += of_value;
  for (const auto& [value, of_value] : weighted) {
    below += of_value;
    if (below >= q * all) return value;
  }
  return weighted.back().first;
}

TEST(quantile_sketch, is_within_one_percent_of_sorted_numbers_that_fade) {
  constexpr double kMemory = 500;
  std::mt19937 random(1);
  std::lognormal_distribution<double> draw(0.0, 0.4);
  QuantileSketch sketch(kMemory);
  std::vector<double> values;
  for (int32_t i = 1; i <= 12000; ++i) {  // past a scaling down
    values.push_back(std::clamp(draw(random), QuantileSketch::kSmallest, 7.0));
    sketch.observe(values.back());
    if (i % 997 != 0) continue;
    for (const double q : {0.01, 0.5, 0.9, 0.99, 0.999}) {
      const double exact = sorted_quantile(values, 1 - 1 / kMemory, q);
      CHECK(sketch.quantile(q) >= exact * (1 - 1e-9));
      CHECK(sketch.quantile(q) <= exact * QuantileSketch::kGrowth * (1 + 1e-9));
    }
  }
  CHECK(std::abs(sketch.num_values() - kMemory) < 1e-3 * kMemory);
}

TEST(quantile_sketch, is_0_before_the_first_number_and_the_nearest_edge_beyond_them) {
  QuantileSketch sketch(100);
  CHECK_EQ(sketch.quantile(0.5), 0.0);
  CHECK_EQ(sketch.num_values(), 0.0);
  CHECK_EQ(sketch.mean_excess(1.0, 0.5), 0.0);
  sketch.observe(1e-9);
  CHECK_EQ(sketch.quantile(0.5), QuantileSketch::kSmallest);
  CHECK(std::abs(sketch.num_values() - 1.0) < 1e-12);
  sketch.observe(1e9);
  CHECK(sketch.quantile(1.0) > 7.9);
  CHECK(sketch.quantile(1.0) < 8.1);
}

TEST(quantile_sketch, follows_numbers_that_drift) {
  QuantileSketch sketch(1000);
  for (int32_t i = 0; i < 5000; ++i) sketch.observe(1.0);
  for (int32_t i = 0; i < 5000; ++i) sketch.observe(3.0);
  CHECK(std::abs(sketch.quantile(0.5) - 3.0) < 0.04);
  for (int32_t i = 0; i < 10000; ++i) sketch.observe(0.5);
  CHECK(std::abs(sketch.quantile(0.999) - 0.5) < 0.006);
}

TEST(quantile_sketch, the_excess_of_an_exponential_tail_is_its_mean) {
  std::mt19937 random(2);
  std::exponential_distribution<double> draw(1 / 0.2);
  QuantileSketch sketch(1e6);
  for (int32_t i = 0; i < 50000; ++i) sketch.observe(1.0 + draw(random));
  CHECK(std::abs(sketch.mean_excess(sketch.quantile(0.99), 0.99) - 0.2) < 0.04);
}

}  // namespace
}  // namespace hocket
