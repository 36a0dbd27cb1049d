// draw_tokens: one token per row of logits: the likeliest, or by chance among those that top-k, top-p and min-p keep.
//
// Chance is inverse transform: the first token, in the order of the vocabulary, whose cumulated probability exceeds the
// row's uniform number. Filters keep the likeliest tokens; their order is min-p, top-k, top-p, each sees what the one
// before it kept; tokens exactly as likely as the last one kept are kept too. The uniform number is a function of
// (seed, index): two rounds of SplitMix64's output mix, as worker/ops/noise.py has it.
// A row's token does not depend on the other rows. kNoToken where the model gave NaN, or a largest logit that is not
// finite: it has failed, and no token would mean anything.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace hocket {

inline constexpr int32_t kNoToken = -1;

struct DrawTokensArgs {
  int32_t* tokens;      // [num_rows]
  const float* logits;  // [num_rows][vocab_size], contiguous
  // Per row; all null: every row is greedy.
  const float* temperature;  // 0: greedy
  const int64_t* top_k;      // < 1: all
  const float* top_p;        // 1: all
  const float* min_p;        // 0: all
  const uint64_t* seed;
  const int64_t* index;
  int64_t num_rows;
  int64_t vocab_size;
  // On CPU: per row, as allow_tokens has them: other tokens' logits count as minus infinity. Null: all are allowed.
  const uint32_t* const* masks = nullptr;
};

// On CUDA everything is in device memory, the parameters too.
Status draw_tokens_cpu(const DrawTokensArgs& args);
Status draw_tokens_cuda(const DrawTokensArgs& args, void* stream);

}  // namespace hocket
