// The product of bfloat16 by bfloat16 with float32 sums, by vdpbf16ps: per lane two products, added to the sum one
// after the other; subnormal numbers count as zero. int8 weights become bfloat16 on the way, which is exact.
//
// Rows of x are taken in groups of up to kMaxRows, whose sums over a panel stay in registers. Every sum runs over k in
// the same order in one register, so its value does not depend on the group. linear_bf16_amx.h has the product by
// tiles. Few rows take one panel at a time, too: memory that is read in one stream by each thread comes faster than in
// two, by more than what further independent sums save.
//
// Rows are addressed by threes. With a pointer of its own for each there are not enough registers, compilers keep some
// in vector registers, and what brings them back takes the place of a product: 3 to 7 % of the time.
//
// The weight is asked for ahead of its use: where one group is all there is, a little further down the same panels;
// else, while the groups use one panel, the next one, in equal parts.
#pragma once

#ifdef __AVX512BF16__

#include "linear/bf16_pairs.h"
#include "linear/linear_epilogue.h"
#include "linear/linear_product.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

// T: BFloat16 or int8_t, the weight's.
template <class T>
class Bf16Product {
 public:
  // REQUIRES: x is bfloat16 and has rows.
  Bf16Product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out)
      : weight_(weight),
        x_(x),
        out_(out),
        num_pairs_(ceil_div(weight.in_features, 2)),
        panel_size_(panel_size<T>(weight.in_features)) {}

  void run(int64_t panel_begin, int64_t panel_end) const {
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      x_.num_rows > kMaxRows ? run_groups(panel) : run_only<kMaxRows>(panel);
    }
  }

 private:
  // Rows of a group: what the registers hold, beside the tables that int8 takes.
  static constexpr int kMaxRows = sizeof(T) == 1 ? 12 : 14;
  static constexpr int64_t kPairBytes = 2 * kPanel * sizeof(T);
  static constexpr int64_t kAheadPairs = 8192 / kPairBytes;

  const T* packed(int64_t panel) const { return static_cast<const T*>(weight_.panels) + panel * panel_size_; }

  // One group.
  template <int kRows>
  void run_only(int64_t panel) const {
    if (x_.num_rows == kRows) return tile<kRows, true>(0, panel, nullptr, 0);
    if constexpr (kRows > 1) run_only<kRows - 1>(panel);
  }

  void run_groups(int64_t panel) const {
    const int64_t groups = ceil_div(x_.num_rows, kMaxRows), step = ceil_div(kPairBytes, groups);
    const char* next = reinterpret_cast<const char*>(packed(panel + 1));
    for (int64_t g = 0; g < groups; ++g, next += num_pairs_ * step) {
      const int64_t first = x_.num_rows * g / groups, end = x_.num_rows * (g + 1) / groups;
      run_group<kMaxRows>(first, end - first, panel, next, step);
    }
  }

  template <int kRows>
  void run_group(int64_t row, int64_t num_rows, int64_t panel, const char* next, int64_t step) const {
    if (num_rows == kRows) return tile<kRows, false>(row, panel, next, step);
    if constexpr (kRows > kMaxRows / 2) run_group<kRows - 1>(row, num_rows, panel, next, step);
  }

  // kRows rows from `row` on. kIsOnly: there are no others; else `next` is what to ask for meanwhile, by `step` bytes
  // per pair of k.
  template <int kRows, bool kIsOnly>
  void tile(int64_t row, int64_t panel, const char* next, int64_t step) const {
    constexpr int kSums = kRows * 2;
    const T* weights = packed(panel);
    const int64_t stride = x_.stride;
    const BFloat16* thirds[(kRows + 2) / 3];  // every third row: the two behind it are one and two strides away
    for (int i = 0; i < (kRows + 2) / 3; ++i) {
      thirds[i] = static_cast<const BFloat16*>(x_.data) + (row + 3 * i) * stride;
    }
    Vec sums[kSums];
#pragma GCC unroll 32
    for (Vec& sum : sums) sum = Vec{};
    for (int64_t pair = 0; pair < num_pairs_; ++pair) {
      if constexpr (kIsOnly) {
        prefetch(weights + (pair + kAheadPairs) * 2 * kPanel);
      } else {
        _mm_prefetch(next, _MM_HINT_T1);
        next += step;
      }
      __m512bh w[2];
      load_panel(weights + pair * 2 * kPanel, w);
#pragma GCC unroll 16
      for (const BFloat16*& rows : thirds) asm("" : "+r"(rows));  // or the compiler makes a pointer of each row
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh x_r = splat_pair(thirds[r / 3] + r % 3 * stride);
        for (int i = 0; i < 2; ++i) sums[r * 2 + i] = _mm512_dpbf16_ps(sums[r * 2 + i], x_r, w[i]);
      }
#pragma GCC unroll 16
      for (const BFloat16*& rows : thirds) rows += 2;
    }
    Vec results[kSums];
#pragma GCC unroll 32
    for (int i = 0; i < kSums; ++i) results[i] = sums[i];
    for (int r = 0; r < kRows; ++r) restore_order<T>(results[2 * r], results[2 * r + 1]);
    write_tile(weight_, out_, row, kRows, panel, 1, results);
  }

  // A pair of k. Past the end of a panel comes the next one. Inlined, since GCC drops a call that only fetches.
  [[gnu::always_inline]] static void prefetch(const T* pair) {
    const char* line = reinterpret_cast<const char*>(pair);
    _mm_prefetch(line, _MM_HINT_T0);
    if (kPairBytes > 64) _mm_prefetch(line + 64, _MM_HINT_T0);
  }

  const PackedWeight& weight_;
  const ProductInput& x_;
  const ProductOutput& out_;
  int64_t num_pairs_;
  int64_t panel_size_;  // elements
};

}  // namespace hocket::cpu::HOCKET_ISA

#endif
