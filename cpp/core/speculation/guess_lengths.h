// How many tokens to guess for whom: those that bring most tokens per second.
//
// A step with k_i guesses for request i is expected to bring sum of E_i(k_i) tokens, E_i(k) = 1 + r_1 + r_1 r_2 + ...
// + r_1 ... r_k with the chance r_j that guess j is right if those before it are. E is concave in k, so the best n
// guesses are those with the largest gains; they are added one by one, and as many are kept as raise tokens / time
// most. Time goes up by tiles of rows (row_costs.h): the first guess may cost as much as the next seven together, so
// that kBeyond more are tried behind the best number so far (tests/cpp/guess_lengths_test.cpp compares with all
// choices). A margin asks for that many times as much. Where a step computes rather than reads, a guess adds as much
// time as a request, and nobody gets any.
//
// Beside prompts, time is what the step would take without them: what guesses bring has to compare with steps that
// decode, and a guess counts as no cheaper than a prompt's token.
//
// Thread safety: none. No allocation once choose() has seen the largest batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "estimates/latency_model.h"
#include "speculation/acceptance.h"
#include "speculation/row_costs.h"

namespace hocket {

// A decode that could have guesses.
struct GuessCandidate {
  int32_t slot = 0;
  int32_t context = 0;  // tokens that its decode attends to
  int32_t length = 0;   // of the match
  int32_t most = 0;     // guesses
  Acceptance::Rates rates = {};
  float chance = 1.0F;      // within choose(): that all guesses so far are right
  int32_t num_guesses = 0;  // the answer

  // That one more is, together with those before it.
  float next_chance() const { return chance * rates[Acceptance::length_index(length + num_guesses)]; }
};

// That steps take.
struct StepTimes {
  const LatencyModel& latency;
  const RowCosts& rows;

  // Seconds of a step that decodes, some of it guesses or none; 0: unknown.
  double of_decodes(const BatchFeatures& decodes, bool has_guesses) const {
    return latency.predict(decodes) * rows.factor(decodes.num_decodes, has_guesses);
  }
};

// What a step must keep to.
struct GuessLimits {
  double max_seconds = 0.0;
  int32_t max_guesses = 0;
  double margin = 1.0;  // by which a guess has to gain more than it costs
};

class GuessLengths {
 public:
  // Whether choose() might grant anything to anybody.
  static bool may_pay(const StepTimes& times, const BatchFeatures& batch, int32_t num_tokens, double margin);

  // batch: of the step without guesses, in which num_tokens tokens are sampled. Sets num_guesses. Returns their sum.
  int32_t choose(const StepTimes& times, BatchFeatures batch, int32_t num_tokens, const GuessLimits& limits,
                 std::span<GuessCandidate> candidates);

 private:
  static constexpr int32_t kBeyond = 8;  // rows of a tile

  std::vector<int32_t> order_;    // candidates as a heap, the largest gain on top
  std::vector<int32_t> granted_;  // candidates, one entry for each guess
};

}  // namespace hocket
