// The product of bfloat16 by bfloat16 with float32 sums, by vdpbf16ps: per lane two products, added to the sum one
// after the other; subnormal numbers count as zero.
//
// Rows of x are taken in groups of up to kMaxBf16Rows, whose sums over a panel stay in registers; few rows take several
// panels at a time, so that there are enough independent sums to hide the latency. Every sum runs over k in the same
// order in one register, so its value does not depend on the group.
#pragma once

#ifdef __AVX512BF16__

#include "linear_epilogue.h"
#include "linear_product.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int kMaxBf16Rows = 14;

inline Vec add_products(Vec sum, __m512i weights, const BFloat16* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(_mm512_set1_epi32(pair)), bit_cast<__m512bh>(weights));
}

class Bf16Product {
 public:
  // REQUIRES: weight and x are bfloat16.
  Bf16Product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out)
      : weight_(weight), x_(x), out_(out), num_pairs_(ceil_div(weight.in_features, 2)) {}

  void run(int64_t panel_begin, int64_t panel_end) const {
    int64_t panel = panel_begin;
    if (x_.num_rows == 1) {
      for (; panel + 4 <= panel_end; panel += 4) tile<1, 4>(0, panel);
    } else if (x_.num_rows == 2) {
      for (; panel + 4 <= panel_end; panel += 4) tile<2, 4>(0, panel);
    } else if (x_.num_rows <= 4) {
      for (; panel + 2 <= panel_end; panel += 2) x_.num_rows == 3 ? tile<3, 2>(0, panel) : tile<4, 2>(0, panel);
    }
    for (; panel < panel_end; ++panel) run_panel(panel);
  }

 private:
  void run_panel(int64_t panel) const {
    const int64_t groups = ceil_div(x_.num_rows, kMaxBf16Rows);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = x_.num_rows * g / groups;
      run_group<kMaxBf16Rows>(first, x_.num_rows * (g + 1) / groups - first, panel);
    }
  }

  template <int kRows>
  void run_group(int64_t row, int64_t num_rows, int64_t panel) const {
    if (num_rows == kRows) return tile<kRows, 1>(row, panel);
    if constexpr (kRows > 1) run_group<kRows - 1>(row, num_rows, panel);
  }

  template <int kRows, int kPanels>
  void tile(int64_t row, int64_t panel) const {
    const BFloat16* x = static_cast<const BFloat16*>(x_.data) + row * x_.stride;
    const BFloat16* weights = static_cast<const BFloat16*>(weight_.panels) + panel * panel_size();
    Vec sums[kRows][2 * kPanels] = {};
    for (int64_t pair = 0; pair < num_pairs_; ++pair) {
      __m512i w[2 * kPanels];
      for (int j = 0; j < 2 * kPanels; ++j) {
        w[j] = _mm512_loadu_si512(weights + j / 2 * panel_size() + pair * 2 * kPanel + j % 2 * 2 * kWidth);
      }
      for (int r = 0; r < kRows; ++r) {
        for (int j = 0; j < 2 * kPanels; ++j) sums[r][j] = add_products(sums[r][j], w[j], x + r * x_.stride + 2 * pair);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        write_panel(weight_, out_, row + r, panel + p, sums[r][2 * p], sums[r][2 * p + 1]);
      }
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
