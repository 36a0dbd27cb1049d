// Rows of x in int8: blocks of kInt8Block values, each a scale times integers from -127 to 127, to the nearest.
//
// A row is contiguous: values padded with zeros to whole blocks; a scale per block; what dots begin at, which meet
// weights that are too large by a constant: minus kInt8Excess times the sum of each block, minus kInt4Excess times the
// sum of each kInt4Block of its integers. What is not finite makes its block's scale NaN, and its integers zero.
#pragma once

#include "linear.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kPartsPerBlock = kInt8Block / kInt4Block;
constexpr int32_t kInt8Excess = 128, kInt4Excess = 8;

inline int64_t num_int8_blocks(int64_t in_features) { return ceil_div(in_features, kInt8Block); }

// Where what follows the values begins in a row, and where the next row, in bytes.
struct Int8RowLayout {
  explicit Int8RowLayout(int64_t in_features) {
    const int64_t num_blocks = num_int8_blocks(in_features);
    scales = num_blocks * kInt8Block;
    int8_begins = scales + num_blocks * 4;
    int4_begins = int8_begins + num_blocks * 4;
    // An odd number of cache lines, so that rows share no cache set.
    stride = round_up(int4_begins + num_blocks * kPartsPerBlock * 4, 128) + 64;
  }

  int64_t scales, int8_begins, int4_begins, stride;
};

class Int8Rows {
 public:
  Int8Rows(const void* data, int64_t in_features) : data_(static_cast<const int8_t*>(data)), layout_(in_features) {}

  int64_t stride() const { return layout_.stride; }
  const int8_t* values(int64_t row) const { return data_ + row * layout_.stride; }

  // Of the block that k is in.
  float scale(int64_t row, int64_t k) const { return word<float>(row, layout_.scales, k / kInt8Block); }

  // What the dot over the block of kBlock values that begins at k begins at.
  template <int64_t kBlock>
  int32_t begin(int64_t row, int64_t k) const {
    return word<int32_t>(row, kBlock == kInt8Block ? layout_.int8_begins : layout_.int4_begins, k / kBlock);
  }

 private:
  template <class T>
  T word(int64_t row, int64_t offset, int64_t index) const {
    T value;
    __builtin_memcpy(&value, values(row) + offset + index * 4, sizeof(value));
    return value;
  }

  const int8_t* data_;
  Int8RowLayout layout_;
};

constexpr float kLeast = 1e-36f;  // below it a block counts as zero: 127 / largest would be infinite

// kInt8Block values of x to `to`, the sums of their parts to `sums`; returns their scale.
inline float quantize_block(const float* x, int8_t* to, int32_t (&sums)[kPartsPerBlock]) {
  IntVec most{};  // magnitudes as integers: in the order of the numbers, and above them what is not finite
  for (int64_t k = 0; k < kInt8Block; k += kWidth) {
    const IntVec magnitudes = bit_cast<IntVec>(load(x + k)) & 0x7fffffff;
    most = most > magnitudes ? most : magnitudes;
  }
  const int32_t bits = max_lane(most);
  const bool is_finite = bits < 0x7f800000;
  const float largest = bit_cast<float>(bits);
  if (!is_finite || !(largest > kLeast)) {
    __builtin_memset(to, 0, kInt8Block);
    __builtin_memset(sums, 0, sizeof(sums));
    return is_finite ? largest / 127.0f : __builtin_nanf("");
  }
  const Vec inverse = splat(127.0f / largest);
  const Vec magic = splat(12582912.0f);  // 1.5 x 2^23: adding it leaves the nearest integer in the lowest bits
  constexpr uint32_t kOfMagic = uint32_t{kInt4Block} * 0x4b400000u;  // what it adds to the sum of a part
  UintVec of_parts[kPartsPerBlock];
  for (int64_t part = 0; part < kPartsPerBlock; ++part) {
    UintVec sum{};
    for (int64_t k = part * kInt4Block; k < (part + 1) * kInt4Block; k += kWidth) {
      const UintVec integers = bit_cast<UintVec>(load(x + k) * inverse + magic);
      sum += integers;
      store_bytes(to + k, integers);
    }
    of_parts[part] = sum;
  }
  const UintVec4 totals = sum_each_of_four(of_parts) - kOfMagic;
  __builtin_memcpy(sums, &totals, sizeof(sums));
  return largest / 127.0f;
}

// A row of x, at `to`.
inline void quantize_row(const float* x, int64_t in_features, int8_t* to) {
  const Int8RowLayout layout(in_features);
  for (int64_t b = 0; b < num_int8_blocks(in_features); ++b) {
    const float* block = x + b * kInt8Block;
    const int64_t n = in_features - b * kInt8Block;
    float padded[kInt8Block];
    if (n < kInt8Block) {
      for (int64_t k = 0; k < kInt8Block; ++k) padded[k] = k < n ? block[k] : 0.0f;
      block = padded;
    }
    int32_t begins[kPartsPerBlock];
    const float scale = quantize_block(block, to + b * kInt8Block, begins);
    int32_t total = 0;
    for (int32_t& begin : begins) {
      total += begin;
      begin *= -kInt4Excess;
    }
    total *= -kInt8Excess;
    __builtin_memcpy(to + layout.scales + b * 4, &scale, 4);
    __builtin_memcpy(to + layout.int8_begins + b * 4, &total, 4);
    __builtin_memcpy(to + layout.int4_begins + b * 4 * kPartsPerBlock, begins, sizeof(begins));
  }
}

}  // namespace hocket::cpu::HOCKET_ISA
