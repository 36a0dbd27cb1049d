#include "estimates/output_forecast.h"

#include <cmath>
#include <random>

#include "testing.h"

namespace hocket {
namespace {

constexpr double kFading = 0.998;  // per answer
constexpr double kPriorWeight = 5.0;
constexpr double kPriorMean = 256.0;

// A bin of an eighth of an octave of (tokens + 8), found with logarithms.
struct Bin {
  double begin;
  double end;
  double middle() const { return (begin + end) / 2; }
};

Bin bin_of(int32_t num_tokens) {
  const double octave = std::floor(std::log2(num_tokens + 8.0));
  const double width = std::exp2(octave - 3);
  const double begin = std::floor((num_tokens + 8.0) / width) * width - 8.0;
  return {begin, begin + width};
}

struct Answer {
  double middle;  // tokens, of its bin
  double weight;
};

// Every answer with its weight; nothing is kept in sums.
struct PlainForecast {
  std::vector<Answer> answers = prior();

  // Geometric lengths: the share of a bin is what survives to its begin and not to its end. The first bin has all that
  // is shorter as well.
  static std::vector<Answer> prior() {
    std::vector<Answer> result;
    double before = 1.0;
    for (double begin = 0.0; result.size() < 160;) {
      const Bin bin = bin_of(static_cast<int32_t>(begin));
      const double after = std::exp(-bin.end / kPriorMean);
      result.push_back({bin.middle(), kPriorWeight * std::max(before - after, 1e-9)});
      before = after;
      begin = bin.end;
    }
    return result;
  }

  void observe(int32_t num_tokens) {
    for (Answer& answer : answers) answer.weight *= kFading;
    answers.push_back({bin_of(num_tokens).middle(), 1.0});
  }

  double expected_rest(int32_t num_tokens) const {
    const double begin = bin_of(num_tokens).middle();
    double weight = 0.0;
    double rest = 0.0;
    for (const Answer& answer : answers) {
      if (answer.middle < begin) continue;
      weight += answer.weight;
      rest += answer.weight * (answer.middle - begin);
    }
    return weight > 0.0 ? std::max(1.0, rest / weight) : 1.0;
  }
};

void expect_near(double actual, double expected, double tolerance) {
  if (std::abs(actual - expected) <= tolerance * expected) return;
  throw testing::Failure(std::to_string(actual) + " is not " + std::to_string(expected));
}

TEST(output_forecast, without_answers_the_prior_speaks) {
  const OutputForecast forecast;
  expect_near(forecast.rest(kOnlineClass, 0), kPriorMean, 0.02);
  expect_near(forecast.rest(kOnlineClass, 100), kPriorMean, 0.05);  // geometric: no memory
}

TEST(output_forecast, answers_of_one_length_leave_what_is_missing_to_it) {
  OutputForecast forecast;
  for (int32_t i = 0; i < 4000; ++i) forecast.observe(kOnlineClass, 100);
  expect_near(forecast.rest(kOnlineClass, 0), 100, 0.1);
  expect_near(forecast.rest(kOnlineClass, 50), 50, 0.15);
  CHECK_EQ(forecast.rest(kOfflineClass, 50), OutputForecast().rest(kOfflineClass, 50));
}

TEST(output_forecast, who_has_outlived_the_short_answers_is_a_long_one) {
  OutputForecast forecast;
  for (int32_t i = 0; i < 4000; ++i) forecast.observe(kOnlineClass, i % 2 == 0 ? 10 : 1000);
  expect_near(forecast.rest(kOnlineClass, 1), 504, 0.05);
  expect_near(forecast.rest(kOnlineClass, 40), 960, 0.05);
}

// The least rest that a share q of the answers that are at least as long does not exceed.
float plain_quantile(const PlainForecast& plain, int32_t num_tokens, double q) {
  const double begin = bin_of(num_tokens).middle();
  std::vector<std::pair<double, double>> longer;
  double all = 0.0;
  for (const Answer& answer : plain.answers) {
    if (answer.middle < begin) continue;
    longer.emplace_back(answer.middle, answer.weight);
    all += answer.weight;
  }
  std::ranges::sort(longer);
  double below = 0.0;
  for (const auto& [middle, weight] : longer) {
    below += weight;
    if (below >= q * all) return static_cast<float>(std::max(1.0, middle - begin));
  }
  return 1.0F;
}

TEST(output_forecast, a_quantile_is_that_of_sorted_answers) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> length(5.0, 1.2);
  for (const double q : {0.1, 0.5, 0.9}) {
    OutputForecast forecast(q);
    PlainForecast plain;
    for (int32_t i = 0; i < 600; ++i) {
      const auto num_tokens = static_cast<int32_t>(std::clamp(length(random), 1.0, 30000.0));
      forecast.observe(kOnlineClass, num_tokens);
      plain.observe(num_tokens);
    }
    for (int32_t n = 0; n < 20000; n = n * 5 / 4 + 1) {
      const double below = plain_quantile(plain, n, q - 1e-4), above = plain_quantile(plain, n, q + 1e-4);
      CHECK(forecast.rest(kOnlineClass, n) >= below * 0.999);
      CHECK(forecast.rest(kOnlineClass, n) <= above * 1.001);
    }
  }
}

TEST(output_forecast, quantiles_of_short_and_long_answers_are_apart) {
  OutputForecast few(0.25), most(0.9);
  for (int32_t i = 0; i < 4000; ++i) {
    for (OutputForecast* forecast : {&few, &most}) forecast->observe(kOnlineClass, i % 2 == 0 ? 10 : 1000);
  }
  expect_near(few.rest(kOnlineClass, 1), 9, 0.1);
  expect_near(most.rest(kOnlineClass, 1), 999, 0.05);
  expect_near(few.rest(kOnlineClass, 40), 960, 0.05);
}

TEST(output_forecast, new_habits_replace_old_ones) {
  OutputForecast forecast;
  for (int32_t i = 0; i < 2000; ++i) forecast.observe(kOnlineClass, 1000);
  for (int32_t i = 0; i < 2000; ++i) forecast.observe(kOnlineClass, 20);
  CHECK(forecast.rest(kOnlineClass, 0) < 45);
}

TEST(output_forecast, a_rest_is_at_least_one_token_however_long_the_answer) {
  OutputForecast forecast;
  for (int32_t i = 0; i < 5000; ++i) forecast.observe(kOnlineClass, 30);
  for (const int32_t n : {30, 31, 32, 1 << 20, std::numeric_limits<int32_t>::max() - 8}) {
    CHECK(forecast.rest(kOnlineClass, n) >= 1.0F);
    CHECK(std::isfinite(forecast.rest(kOnlineClass, n)));
  }
}

TEST(output_forecast, equals_a_sum_over_all_answers) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> length(5.0, 1.2);
  OutputForecast forecast;
  PlainForecast plain;
  for (int32_t i = 0; i < 1500; ++i) {
    const auto num_tokens = static_cast<int32_t>(std::clamp(length(random), 1.0, 30000.0));
    forecast.observe(kOfflineClass, num_tokens);
    plain.observe(num_tokens);
    if (i % 50 != 0) continue;
    for (int32_t n = 0; n < 20000; n = n * 5 / 4 + 1) {
      expect_near(forecast.rest(kOfflineClass, n), plain.expected_rest(n), 2e-3);
    }
  }
}

// Bins may cost accuracy: how far from the mean of L - n over the answers with L > n itself?
TEST(output_forecast, bins_are_fine_enough) {
  std::mt19937 random(2);
  std::exponential_distribution<double> length(1.0 / 300);
  OutputForecast forecast;
  std::vector<int32_t> answers;
  for (int32_t i = 0; i < 6000; ++i) {
    answers.push_back(1 + static_cast<int32_t>(length(random)));
    forecast.observe(kOnlineClass, answers.back());
  }
  for (const int32_t n : {0, 1, 10, 50, 200, 500}) {
    double weight = 0.0;
    double rest = 0.0;
    double fading = 1.0;
    for (const int32_t answer : answers | std::views::reverse) {
      if (answer > n) {
        weight += fading;
        rest += fading * (answer - n);
      }
      fading *= kFading;
    }
    expect_near(forecast.rest(kOnlineClass, n), rest / weight, 0.06);
  }
}

}  // namespace
}  // namespace hocket
