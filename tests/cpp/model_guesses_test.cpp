#include "speculation/model_guesses.h"

#include <cmath>

#include "testing.h"

namespace hocket {
namespace {

using Candidates = std::vector<GuessCandidate>;
constexpr GuessLimits kNoLimits{1e9, 15};

struct Machine {
  LatencyModel latency;
  RowCosts rows;

  StepTimes times() const { return {latency, rows}; }
};

Machine machine_of(double base, double each) {
  LatencyCoefficients k;
  k.decode_base = base;
  k.decode_seq = each;
  k.prefill_token = each;
  return {LatencyModel(LatencyForm::kCorrected, k), {}};
}

ModelTimes model_of(double seconds) {
  ModelTimes model;
  model.observe(1, 1, seconds);
  return model;
}

Candidates candidates_of(int32_t num, float rate, int32_t most = 15) {
  GuessCandidate c{.context = 100, .length = 2, .most = most};
  c.rates.fill(rate);
  return Candidates(static_cast<size_t>(num), c);
}

BatchFeatures decodes(int32_t num, double context = 100) {
  BatchFeatures batch;
  for (int32_t i = 0; i < num; ++i) batch.add_decode(context);
  return batch;
}

int32_t depth(const Machine& machine, const ModelTimes& model, Candidates candidates, int32_t num_others = 0,
              const GuessLimits& limits = kNoLimits) {
  const auto num = static_cast<int32_t>(candidates.size()) + num_others;
  return model_depth(model, machine.times(), decodes(num), num, limits, candidates);
}

// Of `num` requests alike, each guessed `depth` tokens deep.
double tokens_per_second(const Machine& machine, double model_seconds, int32_t num, double rate, int32_t depth) {
  double tokens = num;
  for (int32_t k = 1; k <= depth; ++k) tokens += num * std::pow(rate, k);
  const double step = machine.times().of_decodes(decodes(num * (1 + depth)), depth > 0);
  return tokens / (step + depth * model_seconds);
}

TEST(model_guesses, nobody_is_asked_before_it_is_known_how_long_that_takes) {
  CHECK_EQ(depth(machine_of(0.01, 0.0), ModelTimes(), candidates_of(1, 1.0F)), 0);
  CHECK(depth(machine_of(0.01, 0.0), model_of(1e-4), candidates_of(1, 1.0F)) > 0);
}

TEST(model_guesses, the_depth_is_the_one_with_most_tokens_per_second) {
  for (const int32_t num : {1, 3, 8, 30}) {
    for (const float rate : {0.2F, 0.5F, 0.8F, 0.95F}) {
      for (const double seconds : {1e-5, 3e-4, 2e-3, 9e-3}) {
        for (const double each : {1e-6, 1e-4, 2e-3}) {
          const Machine machine = machine_of(0.01, each);
          int32_t best = 0;
          for (int32_t k = 1; k <= kNoLimits.max_guesses; ++k) {
            const double speed = tokens_per_second(machine, seconds, num, rate, k);
            if (speed > tokens_per_second(machine, seconds, num, rate, best) * (1 + 1e-6)) best = k;
          }
          CHECK_EQ(depth(machine, model_of(seconds), candidates_of(num, rate)), best);
        }
      }
    }
  }
}

TEST(model_guesses, a_model_as_slow_as_a_step_is_not_asked) {
  CHECK_EQ(depth(machine_of(0.01, 1e-5), model_of(0.01), candidates_of(1, 0.9F)), 0);
  CHECK_EQ(depth(machine_of(0.01, 1e-5), model_of(0.01), candidates_of(16, 0.9F)), 0);
}

TEST(model_guesses, where_steps_compute_rather_than_read_nobody_is_asked) {
  CHECK_EQ(depth(machine_of(0.0, 0.001), model_of(1e-5), candidates_of(8, 0.9F)), 0);
}

TEST(model_guesses, those_that_only_decode_beside_count_as_what_they_take) {
  const Machine machine = machine_of(0.01, 1e-5);
  const GuessLimits limits{1e9, 15, 1.3};
  const Candidates one = candidates_of(1, 0.8F);
  CHECK(depth(machine, model_of(0.001), one, 0, limits) > 0);
  CHECK_EQ(depth(machine, model_of(0.001), one, 20, limits), 0);  // a tenth of a step, for one of 21
}

TEST(model_guesses, limits_hold) {
  const Machine machine = machine_of(0.01, 0.0);
  CHECK_EQ(depth(machine, model_of(1e-6), candidates_of(1, 1.0F), 0, {1e9, 4}), 4);
  CHECK_EQ(depth(machine, model_of(0.001), candidates_of(1, 1.0F), 0, {0.0135, 15}), 3);
  CHECK_EQ(depth(machine, model_of(0.001), candidates_of(1, 1.0F), 0, {0.0105, 15}), 0);
  CHECK_EQ(depth(machine, model_of(1e-6), candidates_of(1, 1.0F, 2)), 2);  // its answer is over then
}

TEST(model_guesses, times_are_those_of_the_nearest_size_and_are_learnt) {
  ModelTimes model;
  CHECK_EQ(model.of_token(1), 0.0);
  model.observe(1, 2, 0.004);
  model.observe(32, 4, 0.040);
  CHECK(std::abs(model.of_token(1) - 0.002) < 1e-12);
  CHECK(std::abs(model.of_token(3) - 0.002) < 1e-12);
  CHECK(std::abs(model.of_token(40) - 0.010) < 1e-12);
  CHECK(std::abs(model.of_token(1 << 20) - 0.010) < 1e-12);
  for (int i = 0; i < 500; ++i) model.observe(1, 1, 0.008);
  CHECK(std::abs(model.of_token(1) - 0.008) < 1e-5);
  model.observe(0, 1, 1.0);
  model.observe(1, 0, 1.0);
  model.observe(1, 1, 0.0);
  CHECK(std::abs(model.of_token(1) - 0.008) < 1e-5);
}

}  // namespace
}  // namespace hocket
