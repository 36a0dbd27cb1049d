#include "speculation/guess_lengths.h"

#include <cmath>
#include <random>

#include "testing.h"

namespace hocket {
namespace {

using Candidates = std::vector<GuessCandidate>;
constexpr GuessLimits kNoLimits{1e9, 1000};

LatencyModel per_token(double base, double each) {
  LatencyCoefficients k;
  k.decode_base = base;
  k.decode_seq = each;
  k.prefill_token = each;
  return LatencyModel(LatencyForm::kCorrected, k);
}

BatchFeatures decodes(int32_t num, double context = 100) {
  BatchFeatures batch;
  for (int32_t i = 0; i < num; ++i) batch.add_decode(context);
  return batch;
}

GuessCandidate candidate(float rate, int32_t most = 8) {
  GuessCandidate c{.context = 100, .length = 2, .most = most};
  c.rates.fill(rate);
  return c;
}

int32_t choose(const LatencyModel& latency, const BatchFeatures& batch, Candidates* candidates,
               const GuessLimits& limits = kNoLimits) {
  return GuessLengths().choose(latency, batch, static_cast<int32_t>(batch.num_decodes), limits, *candidates);
}

double tokens_per_second(const LatencyModel& latency, int32_t num_decodes, const Candidates& candidates) {
  double tokens = num_decodes;
  int32_t num_guesses = 0;
  for (const GuessCandidate& c : candidates) {
    for (int32_t k = 1; k <= c.num_guesses; ++k) tokens += std::pow(c.rates[0], k);
    num_guesses += c.num_guesses;
  }
  return tokens / latency.predict(decodes(num_decodes + num_guesses));
}

TEST(guess_lengths, nobody_guesses_where_a_token_more_costs_as_much_as_a_request) {
  Candidates candidates{candidate(0.9F), candidate(0.9F)};
  CHECK_EQ(choose(per_token(0.0, 0.010), decodes(2), &candidates), 0);
}

TEST(guess_lengths, a_sure_text_is_guessed_to_the_end_where_tokens_are_cheap) {
  Candidates candidates{candidate(1.0F)};
  CHECK_EQ(choose(per_token(0.010, 0.001), decodes(1), &candidates), 8);
}

TEST(guess_lengths, who_is_right_more_often_guesses_more) {
  Candidates candidates{candidate(0.5F), candidate(0.9F), candidate(0.05F)};
  choose(per_token(0.010, 0.001), decodes(3), &candidates);
  CHECK(candidates[1].num_guesses > candidates[0].num_guesses);
  CHECK(candidates[0].num_guesses > 0);
  CHECK_EQ(candidates[2].num_guesses, 0);
}

TEST(guess_lengths, limits_are_kept) {
  const LatencyModel latency = per_token(0.010, 0.001);
  Candidates candidates{candidate(1.0F)};
  CHECK_EQ(choose(latency, decodes(1), &candidates, {1e9, 3}), 3);
  candidates = {candidate(1.0F)};
  CHECK_EQ(choose(latency, decodes(1), &candidates, {0.0145, 100}), 3);  // 11 ms, and 1 ms for each
  candidates = {candidate(1.0F, 0)};
  CHECK_EQ(choose(latency, decodes(1), &candidates), 0);
}

TEST(guess_lengths, beside_a_prompt_a_guess_is_worth_what_it_is_among_decodes) {
  const LatencyModel latency = per_token(0.010, 0.010);
  BatchFeatures batch = decodes(1);
  batch.add_chunk(0, 512);
  Candidates candidates{candidate(0.4F)};
  CHECK_EQ(choose(latency, batch, &candidates), 0);  // although the step takes five seconds for one token
}

TEST(guess_lengths, a_margin_asks_for_more_than_a_guess_costs) {
  const LatencyModel latency = per_token(0.010, 0.001);
  Candidates candidates{candidate(0.5F)};
  const int32_t without = choose(latency, decodes(1), &candidates);
  candidates = {candidate(0.5F)};
  const int32_t with = choose(latency, decodes(1), &candidates, {1e9, 1000, 2.0});
  CHECK(0 < with && with < without);
}

TEST(guess_lengths, where_a_sure_guess_does_not_pay_none_is_granted) {
  std::mt19937 random(9);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  int32_t num_paying = 0;
  for (int32_t round = 0; round < 500; ++round) {
    const LatencyModel latency = per_token(uniform(0.0, 0.020), uniform(0.0005, 0.010));
    const auto num_decodes = static_cast<int32_t>(1 + random() % 6);
    BatchFeatures batch = decodes(num_decodes);
    if (random() % 3 == 0) batch.add_chunk(0, static_cast<double>(1 + random() % 300));
    const double margin = uniform(1.0, 1.5);
    const bool may_pay = GuessLengths::may_pay(latency, batch, num_decodes, margin);
    Candidates candidates{candidate(1.0F)};
    const int32_t num_guesses = choose(latency, batch, &candidates, {1e9, 1000, margin});
    CHECK(may_pay || num_guesses == 0);
    num_paying += may_pay;
  }
  CHECK(num_paying > 50 && num_paying < 450);
}

TEST(guess_lengths, the_choice_is_the_best_of_all) {
  std::mt19937 random(7);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  int32_t num_guessing = 0;
  for (int32_t round = 0; round < 300; ++round) {
    const LatencyModel latency = per_token(uniform(0.001, 0.020), uniform(0.0005, 0.010));
    Candidates candidates;
    for (int i = 0; i < 3; ++i) candidates.push_back(candidate(static_cast<float>(uniform(0, 1)), 4));
    const int32_t num_decodes = 3 + static_cast<int32_t>(random() % 4);
    num_guessing += choose(latency, decodes(num_decodes), &candidates) > 0;
    const double found = tokens_per_second(latency, num_decodes, candidates);
    double best = 0;
    for (int32_t all = 0; all < 125; ++all) {
      candidates[0].num_guesses = all % 5;
      candidates[1].num_guesses = all / 5 % 5;
      candidates[2].num_guesses = all / 25;
      best = std::max(best, tokens_per_second(latency, num_decodes, candidates));
    }
    CHECK(found > best * (1 - 1e-6));
  }
  CHECK(num_guessing > 100 && num_guessing < 300);
}

}  // namespace
}  // namespace hocket
