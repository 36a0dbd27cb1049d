// How long will this batch take? (Echo section 5.2, in its original and in a corrected form.)
//
// Corrected:   T_prefill = max( prefill_floor, sum over chunks of prefill_pair ((c+n)^2 - c^2) + prefill_token n
//                                                                 + prefill_context c + prefill_chunk )
//              T_decode  = decode_base + decode_seq b + decode_context (sum of contexts) + decode_max_context (largest)
//                          + decode_far_context max( 0, (sum of contexts) - near )
//                          + hidden_token (hidden-cached tokens)
//              T         = step_base + max(T_prefill, T_decode) + (1 - overlap) min(T_prefill, T_decode)
//              A chunk is n tokens behind a context of c. Tokens that are recomputed every step are chunks too.
//              However short a chunk, it reads the cache of its context once, and it is one more sequence.
//              Contexts of up to near = max( 0, near_context - near_evicted (sum of n) ) tokens stay in the processor's
//              caches from step to step; chunks drive them out.
//
// Echo:        T_prefill = max( prefill_floor, sum of prefill_pair n^2 + prefill_token n )
//              T_decode  = decode_max_context (largest context) + decode_context (mean context)
//              T         = overlap max(T_prefill, T_decode) + (1 - overlap) min(T_prefill, T_decode)
//
// A part that is absent costs nothing, and the other one is then taken whole. Echo's blend never exceeds the larger
// part, although its text says that a mixed batch takes longer than either: the corrected form adds the share of the
// smaller part that does not overlap, and what every step costs. docs/LOG.md has both forms' errors.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/max_tracker.h"

namespace hocket {

// What a prediction needs to know of a batch. Sums, so that a change costs O(1).
struct BatchFeatures {
  double num_chunks = 0;
  double chunk_tokens = 0;    // sum of n
  double chunk_pairs = 0;     // sum of (c+n)^2 - c^2
  double chunk_squares = 0;   // sum of n^2
  double chunk_context = 0;   // sum of c
  double num_decodes = 0;     // b
  double decode_context = 0;  // sum over decodes of the tokens they attend to
  double max_context = 0;     // the largest of those
  double hidden_tokens = 0;   // tokens whose K and V are projected from the hidden cache in this step

  // n tokens behind a context of c; sign -1: takes them back.
  void add_chunk(double c, double n, double sign = 1) {
    num_chunks += sign;
    chunk_tokens += sign * n;
    chunk_pairs += sign * n * (n + 2 * c);
    chunk_squares += sign * n * n;
    chunk_context += sign * c;
  }
  // That attends to so many tokens.
  void add_decode(double context) {
    num_decodes += 1;
    decode_context += context;
    max_context = std::max(max_context, context);
  }
};

// A batch under construction. Not thread-safe; no allocation after construction.
class LatencyBatch {
 public:
  // max_context: the largest context that a decode may have.
  explicit LatencyBatch(int32_t max_context) : contexts_(max_context) {}

  const BatchFeatures& features() const { return features_; }
  int32_t max_context() const { return contexts_.limit(); }

  // REQUIRES: context >= 0, tokens >= 1.
  void add_chunk(int64_t context, int64_t tokens) { change_chunk(context, tokens, 1.0); }
  // REQUIRES: 0 <= context <= max_context.
  void add_decode(int32_t context);
  // The same for one that is never taken back, which costs less.
  void add_fixed_decode(int32_t context) {
    max_fixed_ = std::max(max_fixed_, context);
    features_.add_decode(context);
  }
  // REQUIRES: tokens >= 0.
  void add_hidden(int64_t tokens) { features_.hidden_tokens += static_cast<double>(tokens); }

  // Take back what was added with the same arguments.
  void remove_chunk(int64_t context, int64_t tokens) { change_chunk(context, tokens, -1.0); }
  void remove_decode(int32_t context);
  void remove_hidden(int64_t tokens) { features_.hidden_tokens -= static_cast<double>(tokens); }

  // O(decodes added since the last one).
  void clear();

 private:
  void change_chunk(int64_t context, int64_t tokens, double sign);

  BatchFeatures features_;
  MaxTracker contexts_;    // of decodes that may be taken back
  int32_t max_fixed_ = 0;  // of the others
};

enum class LatencyForm : int32_t { kCorrected = 0, kEcho = 1 };

// All >= 0. In Echo's form prefill_pair counts n^2, decode_context the mean, and the ones marked * are not used.
struct LatencyCoefficients {
  double step_base = 0;           // * seconds
  double prefill_floor = 0;       // c0, seconds
  double prefill_pair = 0;        // alpha, seconds per token^2
  double prefill_token = 0;       // beta, seconds per token
  double prefill_context = 0;     // * seconds per token of context before a chunk
  double prefill_chunk = 0;       // * seconds per chunk
  double decode_base = 0;         // * tau0, seconds
  double decode_seq = 0;          // * kappa, seconds per decode
  double decode_context = 0;      // delta, seconds per token
  double decode_max_context = 0;  // gamma, seconds per token
  double decode_far_context = 0;  // * seconds per token beyond near_context, in addition
  double hidden_token = 0;        // * rho, seconds per token
  double overlap = 1;             // lambda, 0..1
  double near_context = 0;        // * tokens
  double near_evicted = 0;        // * tokens per token of a chunk
};

class LatencyModel {
 public:
  // The coefficients but overlap and the near ones, in the order of LatencyCoefficients.
  static constexpr int kNumLinear = 12;
  using Linear = std::array<double, kNumLinear>;

  explicit LatencyModel(LatencyForm form = LatencyForm::kCorrected, const LatencyCoefficients& coefficients = {})
      : form_(form), coefficients_(coefficients) {}

  LatencyForm form() const { return form_; }
  const LatencyCoefficients& coefficients() const { return coefficients_; }
  Linear linear() const;
  void set_linear(const Linear& linear);

  // Seconds; 0 for an empty batch.
  double predict(const BatchFeatures& features) const;

  // The row x with predict(features) = x . linear(): which side of each max() counts is decided by the coefficients.
  Linear regressors(const BatchFeatures& features) const;

 private:
  struct Parts {
    bool has_prefill = false;
    bool has_decode = false;
    bool is_at_floor = false;
    double prefill = 0;  // seconds
    double decode = 0;   // seconds
  };
  struct Weights {
    double prefill;
    double decode;
  };
  double far_context(const BatchFeatures& features) const;  // tokens
  Parts parts(const BatchFeatures& features) const;
  Weights weights(const Parts& parts) const;

  LatencyForm form_;
  LatencyCoefficients coefficients_;
};

}  // namespace hocket
