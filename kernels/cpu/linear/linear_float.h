// The product with x in float32: float32 weights, and bfloat16 and int8 weights where there are no instructions for
// these.
//
// Rows of x are taken in groups, whose sums over whole panels stay in registers. Few rows: time is the reading of the
// weight, so several panels are taken at a time until there are enough independent sums to hide the latency of a
// multiply-add. Many rows: time is arithmetic; a panel of these is then expanded to float32 once and used for a block
// of rows. Every sum runs over k in ascending order in one register, so its value depends on none of this.
#pragma once

#include "linear/linear_epilogue.h"
#include "linear/linear_product.h"
#include "simd.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int kPanelVecs = 2;
constexpr int64_t kRowBlock = 96;    // rows that a panel serves before the next one
constexpr int64_t kExpandRows = 16;  // expand the panel for more rows than this

// Rows of one group. Expanding on the fly takes registers.
template <class T>
constexpr int kMaxRows = 6;
template <>
constexpr int kMaxRows<BFloat16> = kWidth == 16 ? 6 : 4;
template <>
constexpr int kMaxRows<int8_t> = kMaxRows<BFloat16>;

// The weights of one panel at k = 2 * pair + half, vector `vec` of its columns.
template <int kHalf, bool kReload>
inline Vec load_weights(const float* panel, int64_t pair, int vec) {
  return load(panel + (2 * pair + kHalf) * kPanel + vec * kWidth);
}

template <int kHalf, bool kReload>
inline Vec load_weights(const BFloat16* panel, int64_t pair, int vec) {
  const BFloat16* p = panel + (pair * kPanel + vec * kWidth) * 2;
  if (kReload) asm("" : "+r"(p));  // for the other half too: there is no register to keep it in
  UintVec bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return bit_cast<Vec>(kHalf == 0 ? bits << 16 : bits >> 16 << 16);
}

template <int kHalf, bool kReload>
inline Vec load_weights(const int8_t* panel, int64_t pair, int vec) {
  const UintVec bits = widen(load_bits(panel + (pair * kPanel + vec * kWidth) * 2));
  return __builtin_convertvector(bit_cast<IntVec>(bits << (kHalf == 0 ? 24 : 16)) >> 24, Vec);
}

// sums[r][j] += x[r][k] panels[k][j] at k = 2 * pair + kHalf. The order keeps one element of x in a register at a time.
template <int kHalf, int kRows, int kVecs, class T>
inline void multiply_step(const float* x, int64_t x_stride, const T* panels, int64_t panel_size, int64_t pair,
                          Vec (&sums)[kRows][kVecs]) {
  Vec weights[kVecs];
  for (int j = 0; j < kVecs; ++j) {
    weights[j] = load_weights<kHalf, (kRows > 2)>(panels + j / kPanelVecs * panel_size, pair, j % kPanelVecs);
  }
  for (int r = 0; r < kRows; ++r) {
    const float x_rk = x[r * x_stride + 2 * pair + kHalf];
    for (int j = 0; j < kVecs; ++j) sums[r][j] = fma(x_rk, weights[j], sums[r][j]);
  }
}

// sums = x panels, for kRows rows and kVecs / kPanelVecs panels.
template <int kRows, int kVecs, class T>
inline void multiply(const float* x, int64_t x_stride, const T* panels, int64_t panel_size, int64_t depth,
                     Vec (&sums)[kRows][kVecs]) {
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVecs; ++j) sums[r][j] = Vec{};
  }
  for (int64_t pair = 0; pair < depth / 2; ++pair) {
    multiply_step<0>(x, x_stride, panels, panel_size, pair, sums);
    multiply_step<1>(x, x_stride, panels, panel_size, pair, sums);
  }
  if (depth % 2 != 0) multiply_step<0>(x, x_stride, panels, panel_size, depth / 2, sums);
}

// T: float, BFloat16 or int8_t, the weight's.
template <class T>
class FloatProduct {
 public:
  // REQUIRES: x is float32.
  FloatProduct(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out)
      : weight_(weight), x_(x), out_(out), depth_(weight.in_features), panel_size_(panel_size<T>(depth_)) {}

  // Panels that are best taken together for so many rows.
  static constexpr int64_t panels_together(int64_t num_rows) { return num_rows == 1 ? 4 : num_rows == 2 ? 2 : 1; }

  void run(int64_t panel_begin, int64_t panel_end) const {
    for (int64_t row = 0; row < x_.num_rows; row += kRowBlock) {
      run_block(row, min(x_.num_rows, row + kRowBlock), panel_begin, panel_end);
    }
  }

 private:
  void run_block(int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) const {
    for (int64_t p = panel_begin; p < panel_end;) {
      const T* panel = static_cast<const T*>(weight_.panels) + p * panel_size_;
      const int64_t rows = row_end - row_begin;
      if (rows == 1 && p + 4 <= panel_end) {
        tile<1, 4>(row_begin, panel, p);
        p += 4;
      } else if (rows <= 2 && p + 2 <= panel_end) {
        rows == 1 ? tile<1, 2>(row_begin, panel, p) : tile<2, 2>(row_begin, panel, p);
        p += 2;
      } else {
        const bool is_expanded = sizeof(T) <= 2 && rows > kExpandRows;
        is_expanded ? run_rows(row_begin, row_end, expand(panel), p) : run_rows(row_begin, row_end, panel, p);
        ++p;
      }
    }
  }

  // The panel in the float32 layout.
  const float* expand(const T* panel) const {
    const auto bytes = static_cast<size_t>(panel_size<float>(depth_)) * sizeof(float);
    float* expanded = static_cast<float*>(scratch(Scratch::kItem, bytes));
    for (int64_t pair = 0; pair < ceil_div(depth_, 2); ++pair) {
      for (int j = 0; j < kPanelVecs; ++j) {
        store(expanded + 2 * pair * kPanel + j * kWidth, load_weights<0, false>(panel, pair, j));
        store(expanded + (2 * pair + 1) * kPanel + j * kWidth, load_weights<1, false>(panel, pair, j));
      }
    }
    return expanded;
  }

  template <class W>
  void run_rows(int64_t row_begin, int64_t row_end, const W* panel, int64_t index) const {
    const int64_t rows = row_end - row_begin, groups = ceil_div(rows, kMaxRows<W>);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = row_begin + rows * g / groups;
      run_group(first, row_begin + rows * (g + 1) / groups - first, panel, index);
    }
  }

  template <class W>
  void run_group(int64_t row, int64_t rows, const W* panel, int64_t index) const {
    switch (rows) {
      case 1:
        return tile<1, 1>(row, panel, index);
      case 2:
        return tile<2, 1>(row, panel, index);
      case 3:
        return tile<3, 1>(row, panel, index);
      case 4:
        return tile<4, 1>(row, panel, index);
      case 5:
        return tile<kMaxRows<W> == 6 ? 5 : 4, 1>(row, panel, index);
      default:
        return tile<kMaxRows<W>, 1>(row, panel, index);
    }
  }

  // kRows rows from `row` on, kPanels panels from number `index` on.
  template <int kRows, int kPanels, class W>
  void tile(int64_t row, const W* panels, int64_t index) const {
    Vec sums[kRows][kPanels * kPanelVecs];
    const float* x = static_cast<const float*>(x_.data) + row * x_.stride;
    multiply(x, x_.stride, panels, panel_size_, depth_, sums);
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        write_panel(weight_, out_, row + r, index + p, sums[r][p * kPanelVecs], sums[r][p * kPanelVecs + 1]);
      }
    }
  }

  const PackedWeight& weight_;
  const ProductInput& x_;
  const ProductOutput& out_;
  int64_t depth_;
  int64_t panel_size_;  // elements
};

}  // namespace hocket::cpu::HOCKET_ISA
