// allow_tokens: logits of tokens whose bit is not set become minus infinity. The other tokens' stay as they are, NaN
// included.
//
// allowed_argmax: the token that argmax would find behind allow_tokens, with the logits left as they are. Of masks that
// allow a few tokens it reads those only.
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

struct AllowedArgmaxArgs {
  int32_t* tokens;               // [num_rows] in: the likeliest of all, or kNoToken; stays where it is allowed
  const float* logits;           // [*][vocab_size], contiguous
  const int32_t* rows;           // [num_rows] of the logits
  const uint32_t* const* masks;  // [num_rows] as above
  int64_t num_rows;
  int64_t vocab_size;
};

Status allow_tokens_cpu(const AllowTokensArgs& args);
// kNoToken where nothing is allowed, the largest of what is allowed is not finite, or NaN is allowed.
Status allowed_argmax_cpu(const AllowedArgmaxArgs& args);

}  // namespace hocket
