// What happens to the sums of a panel before they are stored.
#pragma once

#include "linear/linear_product.h"
#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

inline Vec silu(Vec x) { return x / (1.0f + exp(-x)); }

template <class T>
inline void store_columns(T* out, Vec value, int64_t num_columns) {
  num_columns >= kWidth ? store(out, value) : store_first(out, value, num_columns);
}

// Columns [column, column + kWidth) of a row of out, as far as it has them.
inline void write_columns(const ProductOutput& out, int64_t row, int64_t column, int64_t out_features, Vec value) {
  const int64_t place = row * out.stride + column, num_columns = out_features - column;
  if (num_columns <= 0) return;
  if (out.dtype == DType::kBFloat16) return store_columns(static_cast<BFloat16*>(out.data) + place, value, num_columns);
  float* to = static_cast<float*>(out.data) + place;
  if (out.is_added) value += load_up_to(to, num_columns);
  store_columns(to, value, num_columns);
}

// Asks for what num_rows rows over a panel are added to, long before write_panel(). Inlined, since GCC drops a call
// that only fetches.
[[gnu::always_inline]] inline void fetch_panel(const PackedWeight& weight, const ProductOutput& out, int64_t row,
                                               int64_t num_rows, int64_t panel) {
  if (!out.is_added) return;
  const float* place = static_cast<const float*>(out.data) + row * out.stride;
  place += panel * (weight.is_gated ? kWidth : kPanel);
  for (int64_t r = 0; r < num_rows; ++r, place += out.stride) __builtin_prefetch(place, 0, 3);
}

// The sums of num_rows rows over one panel; row r's two vectors are at sums[r * stride]. Written over.
inline void write_panel(const PackedWeight& weight, const ProductOutput& out, int64_t row, int64_t num_rows,
                        int64_t panel, Vec* sums, int64_t stride) {
  Vec* const end = sums + num_rows * stride;
  if (weight.dtype == DType::kInt8) {
    const auto* next = static_cast<const int8_t*>(weight.panels) + (panel + 1) * panel_size<int8_t>(weight.in_features);
    const float* scales = reinterpret_cast<const float*>(next) - kPanel;
    const Vec first = load(scales), second = load(scales + kWidth);
    for (Vec* sum = sums; sum < end; sum += stride) sum[0] *= first, sum[1] *= second;
  }
  if (weight.bias != nullptr) {
    const Vec first = load(weight.bias + panel * kPanel), second = load(weight.bias + panel * kPanel + kWidth);
    for (Vec* sum = sums; sum < end; sum += stride) sum[0] += first, sum[1] += second;
  }
  const int64_t num_vecs = weight.is_gated ? 1 : 2, column = panel * num_vecs * kWidth;
  if (weight.is_gated) {
    for (Vec* sum = sums; sum < end; sum += stride) sum[0] = silu(sum[0]) * sum[1];
  }
  if (column + num_vecs * kWidth > weight.out_features) {
    for (; sums < end; sums += stride, ++row) {
      for (int64_t v = 0; v < num_vecs; ++v) {
        write_columns(out, row, column + v * kWidth, weight.out_features, sums[v]);
      }
    }
  } else if (out.dtype == DType::kBFloat16) {
    BFloat16* to = static_cast<BFloat16*>(out.data) + row * out.stride + column;
    for (; sums < end; sums += stride, to += out.stride) {
      for (int64_t v = 0; v < num_vecs; ++v) store(to + v * kWidth, sums[v]);
    }
  } else {
    float* to = static_cast<float*>(out.data) + row * out.stride + column;
    for (; sums < end; sums += stride, to += out.stride) {
      for (int64_t v = 0; v < num_vecs; ++v) {
        store(to + v * kWidth, out.is_added ? sums[v] + load(to + v * kWidth) : sums[v]);
      }
    }
  }
}

// The sums of num_rows rows over num_panels panels, [num_rows][num_panels][2]. Written over.
[[gnu::noinline]] inline void write_tile(const PackedWeight& weight, const ProductOutput& out, int64_t row,
                                         int64_t num_rows, int64_t panel, int64_t num_panels, Vec* sums) {
  for (int64_t p = 0; p < num_panels; ++p) {
    write_panel(weight, out, row, num_rows, panel + p, sums + 2 * p, 2 * num_panels);
  }
}

}  // namespace hocket::cpu::HOCKET_ISA
