// Rows of x in int8: blocks of kInt8Block values, each a scale times integers from -127 to 127, to the nearest.
//
// A row is contiguous: values padded with zeros to whole blocks, then a scale per block, then the sums of each
// kInt4Block integers. What is not finite makes its block's scale NaN.
#pragma once

#include "linear.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kSumsPerBlock = kInt8Block / kInt4Block;

inline int64_t num_int8_blocks(int64_t in_features) { return ceil_div(in_features, kInt8Block); }

class Int8Rows {
 public:
  Int8Rows(const void* data, int64_t stride, int64_t in_features)
      : data_(static_cast<const int8_t*>(data)),
        stride_(stride),
        scales_(num_int8_blocks(in_features) * kInt8Block),
        sums_(scales_ + num_int8_blocks(in_features) * static_cast<int64_t>(sizeof(float))) {}

  // Bytes from one row to the next: an odd number of cache lines, so that rows share no cache set.
  static int64_t stride(int64_t in_features) {
    const auto of_block = kInt8Block + (1 + kSumsPerBlock) * static_cast<int64_t>(sizeof(float));
    const int64_t bytes = num_int8_blocks(in_features) * of_block;
    return round_up(bytes, 128) + 64;
  }

  const int8_t* values(int64_t row) const { return data_ + row * stride_; }
  float scale(int64_t row, int64_t block) const { return at<float>(row, scales_, block); }
  // Of the block of kBlock values from k on: n of them where it is the last.
  template <int64_t kBlock>
  int32_t sum(int64_t row, int64_t k, int64_t n) const {
    if constexpr (kBlock == kInt4Block) return at<int32_t>(row, sums_, k / kInt4Block);
    int32_t total = 0;
    if (n == kBlock) {  // as nearly always: without branches
      for (int64_t i = 0; i < kSumsPerBlock; ++i) total += at<int32_t>(row, sums_, k / kInt4Block + i);
      return total;
    }
    for (int64_t i = k / kInt4Block; i < ceil_div(k + n, kInt4Block); ++i) total += at<int32_t>(row, sums_, i);
    return total;
  }

 private:
  template <class T>
  T at(int64_t row, int64_t offset, int64_t block) const {
    T value;
    __builtin_memcpy(&value, data_ + row * stride_ + offset + block * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

  const int8_t* data_;
  int64_t stride_;
  int64_t scales_, sums_;  // where they begin in a row
};

constexpr float kLeast = 1e-36f;  // below it a block counts as zero: 127 / largest would be infinite

// n values of x, at most a block, to `to`, padded with zeros to a block; returns their scale.
inline float quantize_block(const float* x, int64_t n, int8_t* to, int32_t (&sums)[kSumsPerBlock]) {
  typedef int8_t ByteVec __attribute__((vector_size(kWidth)));
  Vec most{}, spoiled{};  // spoiled: NaN where a value is not finite, else zero
  for (int64_t k = 0; k < n; k += kWidth) {
    const Vec v = load_up_to(x + k, n - k);
    most = max(most, max(v, -v));
    spoiled += v * 0.0f;
  }
  float largest = 0.0f, spoil = 0.0f;
  for (int i = 0; i < kWidth; ++i) {
    largest = largest < most[i] ? most[i] : largest;
    spoil += spoiled[i];
  }
  const float scale = largest / 127.0f + spoil;
  const bool is_zero = !(largest > kLeast) || scale != scale;
  const Vec inverse = splat(is_zero ? 0.0f : 127.0f / largest);
  const Vec magic = splat(12582912.0f);  // 1.5 x 2^23: adding it leaves the nearest integer in the lowest bits
  for (int64_t part = 0; part < kSumsPerBlock; ++part) {
    IntVec sum{};
    for (int64_t k = part * kInt4Block; k < (part + 1) * kInt4Block; k += kWidth) {
      IntVec integers{};
      if (k < n && !is_zero) {
        integers = bit_cast<IntVec>(load_up_to(x + k, n - k) * inverse + magic) - splat(int32_t{0x4b400000});
        integers = integers > 127 ? splat(int32_t{127}) : integers < -127 ? splat(int32_t{-127}) : integers;
      }
      sum += integers;
      const ByteVec bytes = __builtin_convertvector(integers, ByteVec);
      __builtin_memcpy(to + k, &bytes, sizeof(bytes));
    }
    sums[part] = 0;
    for (int i = 0; i < kWidth; ++i) sums[part] += sum[i];
  }
  return scale;
}

// A row of x, at `to`.
inline void quantize_row(const float* x, int64_t in_features, int8_t* to) {
  const int64_t num_blocks = num_int8_blocks(in_features);
  int8_t* scales = to + num_blocks * kInt8Block;
  int8_t* sums = scales + num_blocks * static_cast<int64_t>(sizeof(float));
  for (int64_t b = 0; b < num_blocks; ++b) {
    int32_t of_block[kSumsPerBlock];
    const int64_t begin = b * kInt8Block;
    const float scale = quantize_block(x + begin, min(kInt8Block, in_features - begin), to + begin, of_block);
    __builtin_memcpy(scales + b * static_cast<int64_t>(sizeof(scale)), &scale, sizeof(scale));
    __builtin_memcpy(sums + b * static_cast<int64_t>(sizeof(of_block)), of_block, sizeof(of_block));
  }
}

}  // namespace hocket::cpu::HOCKET_ISA
