// allow_tokens: logits of tokens whose bit is not set become minus infinity. The other tokens' stay as they are, NaN
// included.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace hocket {

struct AllowTokensArgs {
  float* logits;                 // [*][vocab_size], contiguous
  const int32_t* rows;           // [num_rows] of the logits, distinct
  const uint32_t* const* masks;  // [num_rows] of ceil(vocab_size / 32) words: a bit per token, the lowest first
  int64_t num_rows;
  int64_t vocab_size;
};

Status allow_tokens_cpu(const AllowTokensArgs& args);

}  // namespace hocket
