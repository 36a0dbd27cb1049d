#include "speculation/guess_lengths.h"

#include <cmath>
#include <random>

#include "testing.h"

namespace hocket {
namespace {

using Candidates = std::vector<GuessCandidate>;
constexpr GuessLimits kNoLimits{1e9, 1000};

struct Machine {
  LatencyModel latency;
  RowCosts rows;

  StepTimes times() const { return {latency, rows}; }
};

Machine per_token(double base, double each) {
  LatencyCoefficients k;
  k.decode_base = base;
  k.decode_seq = each;
  k.prefill_token = each;
  return {LatencyModel(LatencyForm::kCorrected, k), {}};
}

// Rows are computed by tiles of so many, so that a step takes what the full ones take, and that has been seen.
Machine per_tile(double base, double each, int32_t rows) {
  Machine machine = per_token(base, each);
  for (int32_t n = 1; n <= RowCosts::kMost; ++n) {
    BatchFeatures batch;
    for (int32_t i = 0; i < n; ++i) batch.add_decode(100);
    const double seconds = base + each * ((n + rows - 1) / rows * rows);
    for (int i = 0; i < 400; ++i) {
      machine.rows.observe(batch, i % 2 == 0, machine.latency.predict(batch), seconds);
    }
  }
  return machine;
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

int32_t choose(const Machine& machine, const BatchFeatures& batch, Candidates* candidates,
               const GuessLimits& limits = kNoLimits) {
  return GuessLengths().choose(machine.times(), batch, static_cast<int32_t>(batch.num_decodes), limits, *candidates);
}

double tokens_per_second(const Machine& machine, int32_t num_decodes, const Candidates& candidates) {
  double tokens = num_decodes;
  int32_t num_guesses = 0;
  for (const GuessCandidate& c : candidates) {
    for (int32_t k = 1; k <= c.num_guesses; ++k) tokens += std::pow(c.rates[0], k);
    num_guesses += c.num_guesses;
  }
  return tokens / machine.times().of_decodes(decodes(num_decodes + num_guesses), num_guesses > 0);
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
  const Machine machine = per_token(0.010, 0.001);
  Candidates candidates{candidate(1.0F)};
  CHECK_EQ(choose(machine, decodes(1), &candidates, {1e9, 3}), 3);
  candidates = {candidate(1.0F)};
  CHECK_EQ(choose(machine, decodes(1), &candidates, {0.0145, 100}), 3);  // 11 ms, and 1 ms for each
  candidates = {candidate(1.0F, 0)};
  CHECK_EQ(choose(machine, decodes(1), &candidates), 0);
}

TEST(guess_lengths, beside_a_prompt_a_guess_is_worth_what_it_is_among_decodes) {
  const Machine machine = per_token(0.010, 0.010);
  BatchFeatures batch = decodes(1);
  batch.add_chunk(0, 512);
  Candidates candidates{candidate(0.4F)};
  CHECK_EQ(choose(machine, batch, &candidates), 0);  // although the step takes five seconds for one token
}

TEST(guess_lengths, a_margin_asks_for_more_than_a_guess_costs) {
  const Machine machine = per_token(0.010, 0.001);
  Candidates candidates{candidate(0.5F)};
  const int32_t without = choose(machine, decodes(1), &candidates);
  candidates = {candidate(0.5F)};
  const int32_t with = choose(machine, decodes(1), &candidates, {1e9, 1000, 2.0});
  CHECK(0 < with && with < without);
}

TEST(guess_lengths, where_a_sure_guess_does_not_pay_none_is_granted) {
  std::mt19937 random(9);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  int32_t num_paying = 0;
  for (int32_t round = 0; round < 500; ++round) {
    const Machine machine = per_token(uniform(0.0, 0.020), uniform(0.0005, 0.010));
    const auto num_decodes = static_cast<int32_t>(1 + random() % 6);
    BatchFeatures batch = decodes(num_decodes);
    if (random() % 3 == 0) batch.add_chunk(0, static_cast<double>(1 + random() % 300));
    const double margin = uniform(1.0, 1.5);
    const bool may_pay = GuessLengths::may_pay(machine.times(), batch, num_decodes, margin);
    Candidates candidates{candidate(1.0F)};
    const int32_t num_guesses = choose(machine, batch, &candidates, {1e9, 1000, margin});
    CHECK(may_pay || num_guesses == 0);
    num_paying += may_pay;
  }
  CHECK(num_paying > 50 && num_paying < 450);
}

TEST(guess_lengths, a_tile_of_rows_is_filled_or_not_begun) {
  const Machine machine = per_tile(0.010, 0.001, 4);
  Candidates candidates{candidate(0.9F), candidate(0.9F), candidate(0.9F), candidate(0.9F)};
  CHECK_EQ(choose(machine, decodes(4), &candidates) % 4, 0);
  candidates.assign(4, candidate(0.2F));
  CHECK_EQ(choose(machine, decodes(4), &candidates), 0);
  candidates.assign(3, candidate(0.2F, 1));
  CHECK_EQ(choose(machine, decodes(3), &candidates), 1);  // which is free
}

TEST(guess_lengths, what_guesses_cost_around_the_step_is_weighed_and_tried_again_some_time) {
  Machine machine = per_token(0.010, 0.001);
  const auto observe = [&](bool has_guesses, double off) {
    const BatchFeatures batch = decodes(has_guesses ? 10 : 8);
    const double predicted = machine.latency.predict(batch);
    machine.rows.observe(batch, has_guesses, predicted, off * predicted);
  };
  const auto guesses = [&] {
    Candidates candidates{candidate(0.9F, 2), candidate(0.9F, 2)};
    return choose(machine, decodes(8), &candidates);
  };
  for (int i = 0; i < 20; ++i) observe(false, 1.0);
  CHECK(guesses() > 0);
  for (int i = 0; i < 20; ++i) observe(true, 1.5);
  CHECK_EQ(guesses(), 0);
  for (int i = 0; i < 100; ++i) observe(false, 1.0);
  CHECK_EQ(guesses(), 0);
  for (int i = 0; i < 2000; ++i) observe(false, 1.0);
  CHECK(guesses() > 0);
  observe(true, 1.5);
  CHECK_EQ(guesses(), 0);
}

TEST(guess_lengths, the_choice_is_the_best_of_all) {
  std::mt19937 random(7);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  int32_t num_guessing = 0;
  for (int32_t round = 0; round < 300; ++round) {
    const double base = uniform(0.001, 0.020), each = uniform(0.0005, 0.010);
    const Machine machine = round % 2 == 0 ? per_token(base, each) : per_tile(base, each, 2 + round % 7);
    Candidates candidates;
    for (int i = 0; i < 3; ++i) candidates.push_back(candidate(static_cast<float>(uniform(0, 1)), 4));
    const int32_t num_decodes = 3 + static_cast<int32_t>(random() % 4);
    num_guessing += choose(machine, decodes(num_decodes), &candidates) > 0;
    const double found = tokens_per_second(machine, num_decodes, candidates);
    double best = 0;
    for (int32_t all = 0; all < 125; ++all) {
      candidates[0].num_guesses = all % 5;
      candidates[1].num_guesses = all / 5 % 5;
      candidates[2].num_guesses = all / 25;
      best = std::max(best, tokens_per_second(machine, num_decodes, candidates));
    }
    CHECK(found > best * (1 - 1e-6));
  }
  CHECK(num_guessing > 100 && num_guessing < 300);
}

}  // namespace
}  // namespace hocket
