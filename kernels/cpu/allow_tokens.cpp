// Without a branch per token: most words are all ones (within a string) or all zeros, the others nobody predicts.
#include "allow_tokens.h"

#include "draw_tokens.h"
#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

constexpr int64_t kWordBits = 32;

IntVec lane_bits() {
  IntVec bits{};
  for (int lane = 0; lane < kWidth; ++lane) bits[lane] = static_cast<int32_t>(1u << lane);
  return bits;
}

// The logits of a whole word's tokens.
void allow_word(float* logits, uint32_t word, IntVec lanes) {
  for (int64_t i = 0; i < kWordBits; i += kWidth) {
    const IntVec bits = splat(static_cast<int32_t>(word >> i)) & lanes;
    store(logits + i, select(bits != 0, load(logits + i), splat(-kInfinity)));
  }
}

void allow(float* logits, const uint32_t* mask, int64_t vocab_size) {
  const IntVec lanes = lane_bits();
  const int64_t num_whole = vocab_size / kWordBits;
  for (int64_t w = 0; w < num_whole; ++w) {
    if (mask[w] != ~0u) allow_word(logits + w * kWordBits, mask[w], lanes);
  }
  for (int64_t i = num_whole * kWordBits; i < vocab_size; ++i) {
    if (!(mask[num_whole] >> (i - num_whole * kWordBits) & 1u)) logits[i] = -kInfinity;
  }
}

bool is_set(const uint32_t* mask, int64_t token) { return mask[token / kWordBits] >> (token % kWordBits) & 1u; }

// Of the first n tokens of a word, those that are allowed.
uint32_t first_bits(uint32_t word, int64_t n) { return n < kWordBits ? word & ((1u << n) - 1) : word; }

// Infinity if one of them is NaN; minus infinity if the word is 0.
float largest_of_few(const float* logits, uint32_t word) {
  float top = -kInfinity;
  for (; word != 0; word &= word - 1) {
    const float logit = logits[__builtin_ctz(word)];
    top = max(logit < kInfinity ? logit : kInfinity, top);
  }
  return top;
}

// Likewise, of a whole word's tokens.
float largest_of_word(const float* logits, uint32_t word, IntVec lanes) {
  const Vec infinity = splat(kInfinity);
  Vec tops = splat(-kInfinity);
  for (int64_t i = 0; i < kWordBits; i += kWidth) {
    const IntVec bits = splat(static_cast<int32_t>(word >> i)) & lanes;
    const Vec v = load(logits + i);
    tops = max(select(bits != 0, select(v < infinity, v, infinity), splat(-kInfinity)), tops);
  }
  return max_lane(tops);
}

int32_t argmax_of_allowed(const float* logits, const uint32_t* mask, int64_t vocab_size) {
  constexpr int kFew = 4;
  const IntVec lanes = lane_bits();
  float top = -kInfinity;
  int64_t at = 0;  // the first token of its word
  for (int64_t i = 0; i < vocab_size; i += kWordBits) {
    const uint32_t word = first_bits(mask[i / kWordBits], vocab_size - i);
    if (word == 0) continue;
    const bool is_few = __builtin_popcount(word) <= kFew || i + kWordBits > vocab_size;
    const float of_word = is_few ? largest_of_few(logits + i, word) : largest_of_word(logits + i, word, lanes);
    if (of_word > top) {
      top = of_word;
      at = i;
    }
  }
  if (!(top > -kInfinity && top < kInfinity)) return kNoToken;
  while (!is_set(mask, at) || logits[at] != top) ++at;
  return static_cast<int32_t>(at);
}

}  // namespace

Status allow_tokens(const AllowTokensArgs& args) {
  parallel_ranges(args.num_rows, args.vocab_size / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      allow(args.logits + args.rows[i] * args.vocab_size, args.masks[i], args.vocab_size);
    }
  });
  return Status::kOk;
}

Status allowed_argmax(const AllowedArgmaxArgs& args) {
  parallel_ranges(args.num_rows, args.vocab_size / 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int32_t& token = args.tokens[i];
      if (token != kNoToken && is_set(args.masks[i], token)) continue;
      token = argmax_of_allowed(args.logits + args.rows[i] * args.vocab_size, args.masks[i], args.vocab_size);
    }
  });
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
