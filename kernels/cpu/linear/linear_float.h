// The product with x in float32: float32 weights, and bfloat16 and int8 weights where there are no instructions for
// these.
//
// Rows of x are taken in groups, whose sums over whole panels stay in registers. Few rows: time is the reading of the
// weight, so several panels are taken at a time until there are enough independent sums to hide the latency of a
// multiply-add. Many rows: time is arithmetic; a panel of these is then expanded to float32 once and used for a block
// of rows. Every sum runs over k in ascending order in one register, so its value depends on none of this.
//
// Rows are addressed by threes and the weight is asked for ahead of its use, as in linear_bf16.h.
#pragma once

#include "ahead.h"
#include "linear/linear_epilogue.h"
#include "linear/linear_product.h"
#include "simd.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

constexpr int kPanelVecs = 2;
constexpr int64_t kRowBlock = 96;  // rows that a panel serves before the next one

// Rows of one group: what the registers hold. Expanding on the fly takes some.
template <class T>
constexpr int kMaxRows = 6;
template <>
constexpr int kMaxRows<BFloat16> = kWidth >= 8 ? 6 : 4;
template <>
constexpr int kMaxRows<int8_t> = kWidth == 16 ? 6 : 4;

// A panel is expanded for more rows than this; before, it costs more than it saves. Where vectors have 8 lanes bfloat16
// never is: what expands on the fly does not take the place of products, and a panel is half as large (Zen 3).
template <class T>
constexpr int64_t kExpandRows = kRowBlock;
template <>
constexpr int64_t kExpandRows<BFloat16> = kWidth == 8 ? kRowBlock : 16;
template <>
constexpr int64_t kExpandRows<int8_t> = kWidth == 8 ? 8 : 16;

// The weights at k = 2 * pair + half, vector `vec` of the columns; p: the pair's, of a panel. kIsScarce: there are no
// registers left.
template <int kHalf, bool kIsScarce>
inline Vec load_weights(const float* p, int vec) {
  return load(p + kHalf * kPanel + vec * kWidth);
}

template <int kHalf, bool kIsScarce>
inline Vec load_weights(const BFloat16* p, int vec) {
  UintVec bits;
  __builtin_memcpy(&bits, p + vec * kWidth * 2, sizeof(bits));
  if (kHalf == 0) return bit_cast<Vec>(bits << 16);
  bits >>= 16;
#if HOCKET_SIMD_WIDTH == 8 && defined(__AVX2__)
  if (kIsScarce) asm("" : "+x"(bits));  // or the compiler makes it a mask, in a register
#endif
  return bit_cast<Vec>(bits << 16);
}

template <int kHalf, bool kIsScarce>
inline Vec load_weights(const int8_t* p, int vec) {
  const UintVec bits = widen(load_bits(p + vec * kWidth * 2));
  return __builtin_convertvector(bit_cast<IntVec>(bits << (kHalf == 0 ? 24 : 16)) >> 24, Vec);
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
  static constexpr int64_t kPairBytes = 2 * kPanel * static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kAheadPairs = 8192 / kPairBytes;

  const T* packed(int64_t panel) const { return static_cast<const T*>(weight_.panels) + panel * panel_size_; }

  void run_block(int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) const {
    const int64_t rows = row_end - row_begin;
    int64_t p = panel_begin;
    if (rows == 1) {
      for (; p + 4 <= panel_end; p += 4) tile<1, 4, true>(row_begin, packed(p), p, {});
    }
    if (rows <= 2) {
      for (; p + 2 <= panel_end; p += 2) run_group<2, 2, true>(row_begin, rows, packed(p), p, {});
    }
    for (; p < panel_end; ++p) {
      if (rows <= kMaxRows<T>) {
        run_group<1, kMaxRows<T>, true>(row_begin, rows, packed(p), p, {});
      } else if (rows > kExpandRows<T>) {
        run_groups(row_begin, row_end, expand(packed(p)), p);
      } else {
        run_groups(row_begin, row_end, packed(p), p);
      }
    }
  }

  // The panel in the float32 layout.
  const float* expand(const T* panel) const {
    const auto bytes = static_cast<size_t>(panel_size<float>(depth_)) * sizeof(float);
    float* expanded = static_cast<float*>(scratch(Scratch::kItem, bytes));
    for (int64_t pair = 0; pair < ceil_div(depth_, 2); ++pair) {
      for (int j = 0; j < kPanelVecs; ++j) {
        store(expanded + 2 * pair * kPanel + j * kWidth, load_weights<0, false>(panel + 2 * pair * kPanel, j));
        store(expanded + (2 * pair + 1) * kPanel + j * kWidth, load_weights<1, false>(panel + 2 * pair * kPanel, j));
      }
    }
    return expanded;
  }

  // Panel number `index`, as W. While the groups use it, the next one is asked for, in equal parts.
  template <class W>
  void run_groups(int64_t row_begin, int64_t row_end, const W* panel, int64_t index) const {
    const int64_t rows = row_end - row_begin, groups = ceil_div(rows, int64_t{kMaxRows<W>});
    const int64_t step = ceil_div(kPairBytes, groups);
    const char* next = reinterpret_cast<const char*>(packed(index + 1));
    for (int64_t g = 0; g < groups; ++g, next += step * ceil_div(depth_, 2)) {
      const int64_t first = rows * g / groups, end = rows * (g + 1) / groups;
      run_group<1, kMaxRows<W>, false>(row_begin + first, end - first, panel, index, {next, step});
    }
  }

  template <int kPanels, int kRows, bool kIsOnly, class W>
  void run_group(int64_t row, int64_t num_rows, const W* panels, int64_t index, Ahead ahead) const {
    if (num_rows == kRows) return tile<kRows, kPanels, kIsOnly>(row, panels, index, ahead);
    if constexpr (kRows > (kIsOnly ? 1 : kMaxRows<W> / 2)) {
      run_group<kPanels, kRows - 1, kIsOnly>(row, num_rows, panels, index, ahead);
    }
  }

  // kRows rows from `row` on, kPanels panels from number `index` on. kIsOnly: there are no other rows, and a little
  // further down the same panels is asked for; else `ahead` is.
  template <int kRows, int kPanels, bool kIsOnly, class W>
  [[gnu::noinline]] void tile(int64_t row, const W* panels, int64_t index, Ahead ahead) const {
    if constexpr (!kIsOnly) fetch_panel(weight_, out_, row, kRows, index);
    const int64_t stride = x_.stride;
    const float* thirds[(kRows + 2) / 3];  // every third row: the two behind it are one and two strides away
    for (int i = 0; i < (kRows + 2) / 3; ++i) {
      thirds[i] = static_cast<const float*>(x_.data) + (row + 3 * i) * stride;
    }
    Vec sums[kRows][kPanels * kPanelVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (Vec& sum : sums[r]) sum = Vec{};
    }
    for (int64_t pair = 0; pair < depth_ / 2; ++pair, panels += 2 * kPanel) {
      if constexpr (kIsOnly) {
        prefetch_panels<kPanels>(index, pair + kAheadPairs / kPanels);
      } else {
        ahead.ask();
      }
#pragma GCC unroll 8
      for (const float*& rows : thirds) asm("" : "+r"(rows));  // or the compiler makes a pointer of each row
      add_products<0>(thirds, stride, panels, sums);
      add_products<1>(thirds, stride, panels, sums);
#pragma GCC unroll 8
      for (const float*& rows : thirds) rows += 2;
    }
    if (depth_ % 2 != 0) add_products<0>(thirds, stride, panels, sums);
    Vec results[kRows][kPanels * kPanelVecs];  // sums are registers
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kPanels * kPanelVecs; ++j) results[r][j] = sums[r][j];
    }
    write_tile(weight_, out_, row, kRows, index, kPanels, results[0]);
  }

  // sums[r][j] += x[r] panels[j] at k = 2 * pair + kHalf. thirds: every third row of x; panels: the first one; both at
  // the pair. The order keeps one element of x in a register at a time.
  template <int kHalf, int kRows, int kVecs, class W>
  [[gnu::always_inline]] void add_products(const float* const (&thirds)[(kRows + 2) / 3], int64_t stride,
                                           const W* panels, Vec (&sums)[kRows][kVecs]) const {
    constexpr bool kIsScarce = kWidth < 16 && kRows * kVecs > 8;
    if constexpr (kHalf == 1 && kIsScarce) asm volatile("" : "+r"(panels));  // so that nothing is kept from half 0
    Vec weights[kVecs];
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      weights[j] = load_weights<kHalf, kIsScarce>(panels + j / kPanelVecs * panel_size_, j % kPanelVecs);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float x_rk = thirds[r / 3][r % 3 * stride + kHalf];
#pragma GCC unroll 8
      for (int j = 0; j < kVecs; ++j) sums[r][j] = fma(x_rk, weights[j], sums[r][j]);
    }
  }

  // Past the end of these panels come the next ones. Inlined, since GCC drops a call that only fetches.
  template <int kPanels>
  [[gnu::always_inline]] void prefetch_panels(int64_t panel, int64_t pair) const {
    const int64_t skipped = pair < depth_ / 2 ? 0 : (kPanels - 1) * panel_size_;
    const T* place = packed(panel) + pair * 2 * kPanel + skipped;
    for (int p = 0; p < kPanels; ++p) {
      const char* line = reinterpret_cast<const char*>(place + p * panel_size_);
      for (int64_t byte = 0; byte < kPairBytes; byte += 64) __builtin_prefetch(line + byte, 0, 3);
    }
  }

  const PackedWeight& weight_;
  const ProductInput& x_;
  const ProductOutput& out_;
  int64_t depth_;
  int64_t panel_size_;  // elements
};

}  // namespace hocket::cpu::HOCKET_ISA
