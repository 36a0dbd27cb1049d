// The product of bfloat16 by bfloat16 with float32 sums, by vdpbf16ps: per lane two products, added to the sum one
// after the other; subnormal numbers count as zero. int8 weights become bfloat16 on the way, which is exact.
//
// Rows of x are taken in groups of up to kMaxRows, whose sums over a panel stay in registers; few rows take two
// panels at a time, so that there are enough independent sums to hide the latency. Every sum runs over k in the same
// order in one register, so its value does not depend on the group. linear_bf16_amx.h has the product by tiles.
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

  // Panels that are best taken together for so many rows.
  static int64_t panels_together(int64_t num_rows) { return num_rows <= kMaxRowsOfTwo ? 2 : 1; }

  void run(int64_t panel_begin, int64_t panel_end) const {
    int64_t panel = panel_begin;
    if (x_.num_rows <= kMaxRowsOfTwo) {
      for (; panel + 2 <= panel_end; panel += 2) run_only<2, kMaxRowsOfTwo>(panel);
    }
    for (; panel < panel_end; ++panel) x_.num_rows > kMaxRows ? run_groups(panel) : run_only<1, kMaxRows>(panel);
  }

 private:
  // Rows of a group over one panel and over two: what the registers hold, beside the tables that int8 takes.
  static constexpr int kMaxRows = sizeof(T) == 1 ? 12 : 14;
  static constexpr int kMaxRowsOfTwo = sizeof(T) == 1 ? 5 : 6;
  static constexpr int64_t kPairBytes = 2 * kPanel * sizeof(T);
  static constexpr int64_t kAheadPairs = 8192 / kPairBytes;

  const T* packed(int64_t panel) const { return static_cast<const T*>(weight_.panels) + panel * panel_size_; }

  // One group: kPanels panels from `panel` on.
  template <int kPanels, int kRows>
  void run_only(int64_t panel) const {
    if (x_.num_rows == kRows) return tile<kRows, kPanels, true>(0, panel, nullptr, 0);
    if constexpr (kRows > 1) run_only<kPanels, kRows - 1>(panel);
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
    if (num_rows == kRows) return tile<kRows, 1, false>(row, panel, next, step);
    if constexpr (kRows > kMaxRows / 2) run_group<kRows - 1>(row, num_rows, panel, next, step);
  }

  // kRows rows from `row` on, kPanels panels from `panel` on. kIsOnly: there are no other rows; else `next` is what to
  // ask for meanwhile, by `step` bytes per pair of k.
  template <int kRows, int kPanels, bool kIsOnly>
  void tile(int64_t row, int64_t panel, const char* next, int64_t step) const {
    constexpr int kSums = kRows * kPanels * 2;
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
        prefetch_panels<kPanels>(panel, pair + kAheadPairs / kPanels);
      } else {
        _mm_prefetch(next, _MM_HINT_T1);
        next += step;
      }
      __m512bh w[kPanels][2];
      for (int p = 0; p < kPanels; ++p) load_panel(weights + p * panel_size_ + pair * 2 * kPanel, w[p]);
#pragma GCC unroll 16
      for (const BFloat16*& rows : thirds) asm("" : "+r"(rows));  // or the compiler makes a pointer of each row
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh x_r = splat_pair(thirds[r / 3] + r % 3 * stride);
        for (int i = 0; i < 2 * kPanels; ++i) {
          Vec& sum = sums[r * 2 * kPanels + i];
          sum = _mm512_dpbf16_ps(sum, x_r, w[i / 2][i % 2]);
        }
      }
#pragma GCC unroll 16
      for (const BFloat16*& rows : thirds) rows += 2;
    }
    Vec results[kSums];
#pragma GCC unroll 32
    for (int i = 0; i < kSums; ++i) results[i] = sums[i];
    for (int i = 0; i < kRows * kPanels; ++i) restore_order<T>(results[2 * i], results[2 * i + 1]);
    write_tile(weight_, out_, row, kRows, panel, kPanels, results);
  }

  // Past the end of these panels come the next ones. Inlined, since GCC drops a call that only fetches.
  template <int kPanels>
  [[gnu::always_inline]] void prefetch_panels(int64_t panel, int64_t pair) const {
    const int64_t skipped = pair < num_pairs_ ? 0 : (kPanels - 1) * panel_size_;
    const T* place = packed(panel) + pair * 2 * kPanel + skipped;
    for (int p = 0; p < kPanels; ++p) {
      const char* line = reinterpret_cast<const char*>(place + p * panel_size_);
      _mm_prefetch(line, _MM_HINT_T0);
      if (kPairBytes > 64) _mm_prefetch(line + 64, _MM_HINT_T0);
    }
  }

  const PackedWeight& weight_;
  const ProductInput& x_;
  const ProductOutput& out_;
  int64_t num_pairs_;
  int64_t panel_size_;  // elements
};

}  // namespace hocket::cpu::HOCKET_ISA

#endif
