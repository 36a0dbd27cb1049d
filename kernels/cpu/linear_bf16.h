// The product of bfloat16 by bfloat16 with float32 sums, by vdpbf16ps: per lane two products, added to the sum one
// after the other; subnormal numbers count as zero.
//
// Rows of x are taken in groups of up to kMaxRows, whose sums over a panel stay in registers; few rows take two
// panels at a time, so that there are enough independent sums to hide the latency. Every sum runs over k in the same
// order in one register, so its value does not depend on the group.
//
// The weight is asked for ahead of its use: where one group is all there is, a little further down the same panels;
// else, while the groups use one panel, the next one, in equal parts.
#pragma once

#ifdef __AVX512BF16__

#include "linear_epilogue.h"
#include "linear_product.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

inline __m512bh load_pairs(const BFloat16* p) { return bit_cast<__m512bh>(_mm512_loadu_si512(p)); }

inline __m512bh splat_pair(const BFloat16* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return bit_cast<__m512bh>(_mm512_set1_epi32(pair));
}

class Bf16Product {
 public:
  // REQUIRES: weight and x are bfloat16, x has rows.
  Bf16Product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out)
      : weight_(weight), x_(x), out_(out), num_pairs_(ceil_div(weight.in_features, 2)) {}

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
  static constexpr int kMaxRows = 14;         // of a group over one panel: 28 registers of sums
  static constexpr int kMaxRowsOfTwo = 6;     // over two
  static constexpr int64_t kAheadPairs = 64;  // 8 KiB

  // One group: kPanels panels from `panel` on.
  template <int kPanels, int kRows>
  void run_only(int64_t panel) const {
    if (x_.num_rows == kRows) return tile<kRows, kPanels, true>(0, panel, 0, 1);
    if constexpr (kRows > 1) run_only<kPanels, kRows - 1>(panel);
  }

  void run_groups(int64_t panel) const {
    const int64_t groups = ceil_div(x_.num_rows, kMaxRows);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = x_.num_rows * g / groups, end = x_.num_rows * (g + 1) / groups;
      run_group<kMaxRows>(first, end - first, panel, g, groups);
    }
  }

  template <int kRows>
  void run_group(int64_t row, int64_t num_rows, int64_t panel, int64_t group, int64_t groups) const {
    if (num_rows == kRows) return tile<kRows, 1, false>(row, panel, group, groups);
    if constexpr (kRows > kMaxRows / 2) run_group<kRows - 1>(row, num_rows, panel, group, groups);
  }

  // kRows rows from `row` on, kPanels panels from `panel` on. It is group `group` of `groups`, or the only one.
  template <int kRows, int kPanels, bool kIsOnly>
  void tile(int64_t row, int64_t panel, int64_t group, int64_t groups) const {
    const BFloat16* x = static_cast<const BFloat16*>(x_.data) + row * x_.stride;
    const BFloat16* weights = static_cast<const BFloat16*>(weight_.panels) + panel * panel_size();
    const int64_t step = kIsOnly ? 0 : ceil_div(2 * kPanel, groups);
    const BFloat16* next = weights + panel_size() + group * num_pairs_ * step;
    Vec sums[kRows][2 * kPanels] = {};
    for (int64_t pair = 0; pair < num_pairs_; ++pair) {
      if constexpr (kIsOnly) {
        prefetch_panels<kPanels>(weights, pair + kAheadPairs / kPanels);
      } else {
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
        next += step;
      }
      __m512bh w[2 * kPanels];
      for (int j = 0; j < 2 * kPanels; ++j) {
        w[j] = load_pairs(weights + j / 2 * panel_size() + pair * 2 * kPanel + j % 2 * 2 * kWidth);
      }
      for (int r = 0; r < kRows; ++r) {
        const __m512bh x_r = splat_pair(x + r * x_.stride + 2 * pair);
        for (int j = 0; j < 2 * kPanels; ++j) sums[r][j] = _mm512_dpbf16_ps(sums[r][j], x_r, w[j]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        write_panel(weight_, out_, row + r, panel + p, sums[r][2 * p], sums[r][2 * p + 1]);
      }
    }
  }

  // Past the end of these panels come the next ones.
  template <int kPanels>
  void prefetch_panels(const BFloat16* weights, int64_t pair) const {
    const int64_t skipped = pair < num_pairs_ ? 0 : (kPanels - 1) * panel_size();
    const BFloat16* place = weights + pair * 2 * kPanel + skipped;
    for (int p = 0; p < kPanels; ++p) {
      const char* line = reinterpret_cast<const char*>(place + p * panel_size());
      _mm_prefetch(line, _MM_HINT_T0);
      _mm_prefetch(line + 64, _MM_HINT_T0);
    }
  }

  int64_t panel_size() const { return num_pairs_ * 2 * kPanel; }  // elements

  const PackedWeight& weight_;
  const ProductInput& x_;
  const ProductOutput& out_;
  int64_t num_pairs_;
};

}  // namespace hocket::cpu::HOCKET_ISA

#endif
