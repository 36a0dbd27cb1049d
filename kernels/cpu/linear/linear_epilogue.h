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

// Asks for what num_rows rows over a panel are added to, long before write_panel().
inline void fetch_panel(const PackedWeight& weight, const ProductOutput& out, int64_t row, int64_t num_rows,
                        int64_t panel) {
  if (!out.is_added) return;
  const float* place = static_cast<const float*>(out.data) + row * out.stride;
  place += panel * (weight.is_gated ? kWidth : kPanel);
  for (int64_t r = 0; r < num_rows; ++r, place += out.stride) __builtin_prefetch(place, 0, 3);
}

// The sums of one row over one panel.
inline void write_panel(const PackedWeight& weight, const ProductOutput& out, int64_t row, int64_t panel, Vec first,
                        Vec second) {
  if (weight.dtype == DType::kInt8) {
    const auto* next = static_cast<const int8_t*>(weight.panels) + (panel + 1) * panel_size<int8_t>(weight.in_features);
    const float* scales = reinterpret_cast<const float*>(next) - kPanel;
    first *= load(scales);
    second *= load(scales + kWidth);
  }
  if (weight.bias != nullptr) {
    first += load(weight.bias + panel * kPanel);
    second += load(weight.bias + panel * kPanel + kWidth);
  }
  if (weight.is_gated) {
    write_columns(out, row, panel * kWidth, weight.out_features, silu(first) * second);
  } else {
    write_columns(out, row, panel * kPanel, weight.out_features, first);
    write_columns(out, row, panel * kPanel + kWidth, weight.out_features, second);
  }
}

}  // namespace hocket::cpu::HOCKET_ISA
