// Without a branch per token: most words are all ones (within a string) or all zeros, the others nobody predicts.
#include "allow_tokens.h"

#include "draw_tokens.h"
#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"
#include "token_mask.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

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

// Each lane's largest so far, likewise, and those of a whole word's tokens.
Vec with_word(Vec tops, const float* logits, uint32_t word, IntVec lanes) {
  const Vec infinity = splat(kInfinity);
  for (int64_t i = 0; i < kWordBits; i += kWidth) {
    Vec v = load(logits + i);
    v = select(v < infinity, v, infinity);
    if (word != ~0u) v = select((splat(static_cast<int32_t>(word >> i)) & lanes) != 0, v, splat(-kInfinity));
    tops = max(v, tops);
  }
  return tops;
}

}  // namespace

int32_t argmax_of_allowed(const float* logits, const uint32_t* mask, int64_t vocab_size) {
  constexpr int kFew = 4;
  constexpr int64_t kSpan = 8 * kWordBits;  // tokens whose largest is found in lanes first
  const IntVec lanes = lane_bits();
  float top = -kInfinity;
  int64_t at = 0;  // the first token of its span
  for (int64_t begin = 0; begin < vocab_size; begin += kSpan) {
    const int64_t end = min(begin + kSpan, vocab_size);
    float of_span = -kInfinity;
    Vec tops = splat(-kInfinity);
    bool has_lanes = false;
    for (int64_t i = begin; i < end; i += kWordBits) {
      const uint32_t word = first_bits(mask[i / kWordBits], end - i);
      if (__builtin_popcount(word) <= kFew || i + kWordBits > end) {
        of_span = max(largest_of_few(logits + i, word), of_span);
      } else {
        tops = with_word(tops, logits + i, word, lanes);
        has_lanes = true;
      }
    }
    if (has_lanes) of_span = max(max_lane(tops), of_span);
    if (of_span > top) {
      top = of_span;
      at = begin;
    }
  }
  if (!(top > -kInfinity && top < kInfinity)) return kNoToken;
  while (logits[at] != top || !is_set(mask, at)) ++at;
  return static_cast<int32_t>(at);
}

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
