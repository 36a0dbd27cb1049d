// Masks of tokens, a bit per token, the lowest first, and what kernels ask of them.
#pragma once

#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kWordBits = 32;

inline bool is_set(const uint32_t* mask, int64_t token) { return mask[token / kWordBits] >> (token % kWordBits) & 1u; }

// Lane l has bit l only.
inline IntVec lane_bits() {
  IntVec bits{};
  for (int lane = 0; lane < kWidth; ++lane) bits[lane] = static_cast<int32_t>(1u << lane);
  return bits;
}

// The first of the largest of the tokens whose bit is set; kNoToken if there is none, the largest is not finite, or one
// of them is NaN. In allow_tokens.cpp.
int32_t argmax_of_allowed(const float* logits, const uint32_t* mask, int64_t vocab_size);

}  // namespace hocket::cpu::HOCKET_ISA
