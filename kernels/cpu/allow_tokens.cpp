// Without a branch per token: most words are all ones (within a string) or all zeros, the others nobody predicts.
#include "allow_tokens.h"

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

}  // namespace

Status allow_tokens(const AllowTokensArgs& args) {
  parallel_ranges(args.num_rows, args.vocab_size / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      allow(args.logits + args.rows[i] * args.vocab_size, args.masks[i], args.vocab_size);
    }
  });
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
