// How many tokens a small model is to guess, for all that decode together: as many as raise tokens per second most, the
// small model's own time counted (the field says draft model; a draft here is a message that is still being typed).
//
// It runs before the step is planned and says one token of each request after the other, so that its time goes with how
// many tokens deep it goes, hardly with how many requests there are. The step is taken to be the decodes that run now.
// What of its guesses is then computed is decided with all other guesses (guess_lengths.h): its time is spent by then.
//
// Thread safety: none. No allocation.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "speculation/guess_lengths.h"

namespace hocket {

// What the small model takes for one token of each of so many requests, as measured.
class ModelTimes {
 public:
  // It took `seconds` for num_tokens tokens of each of num_requests. Ignored if any of it is nothing.
  void observe(int32_t num_requests, int32_t num_tokens, double seconds);

  // 0: nothing has been measured.
  double of_token(int32_t num_requests) const;

 private:
  static constexpr int kNumSizes = 12;     // powers of two
  static constexpr double kMemory = 50.0;  // observations, beyond which older ones count less

  struct Mean {
    double seconds = 0;
    double num = 0;
  };
  std::array<Mean, kNumSizes> by_size_ = {};
};

// Tokens of each candidate that are worth asking for, at most limits.max_guesses of each; 0: none. batch: of a step
// that decodes num_tokens requests, the candidates among them. Sets the candidates' chance.
int32_t model_depth(const ModelTimes& model, const StepTimes& times, BatchFeatures batch, int32_t num_tokens,
                    const GuessLimits& limits, std::span<GuessCandidate> candidates);

}  // namespace hocket
