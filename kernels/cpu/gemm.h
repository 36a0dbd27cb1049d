// Small dense products in float32 on data that fits the caches.
#pragma once

#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

// Accumulators of one micro-kernel: kMicroRows x kMicroVecs vectors, as many as the registers hold.
constexpr int kMicroRows = 6;
constexpr int kMicroVecs = kWidth == 16 ? 4 : 2;

// A[i][k] is at data[i * row + k * col].
struct StridedMatrix {
  const float* data;
  int64_t row;
  int64_t col;
};

template <int kRows, int kVecs>
inline void micro_gemm(StridedMatrix a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t depth) {
  Vec sum[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) sum[i][j] = load(c + i * c_row + j * kWidth);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec b_vec[kVecs];
    for (int j = 0; j < kVecs; ++j) b_vec[j] = load(b + k * b_row + j * kWidth);
    for (int i = 0; i < kRows; ++i) {
      const float a_ik = a.data[i * a.row + k * a.col];
      for (int j = 0; j < kVecs; ++j) sum[i][j] += a_ik * b_vec[j];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) store(c + i * c_row + j * kWidth, sum[i][j]);
  }
}

template <int kVecs>
void gemm_columns(StridedMatrix a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t rows,
                  int64_t depth) {
  int64_t i = 0;
  const auto step = [&]<int kRows>() {
    micro_gemm<kRows, kVecs>({a.data + i * a.row, a.row, a.col}, b, b_row, c + i * c_row, c_row, depth);
    i += kRows;
  };
  while (i + kMicroRows <= rows) step.template operator()<kMicroRows>();
  if (i + 4 <= rows) step.template operator()<4>();
  if (i + 2 <= rows) step.template operator()<2>();
  if (i < rows) step.template operator()<1>();
}

// C += A B. A [rows][depth], B [depth][cols] and C [rows][cols] with rows b_row and c_row apart.
// REQUIRES: cols is a multiple of kWidth.
inline void gemm(StridedMatrix a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t rows, int64_t cols,
                 int64_t depth) {
  int64_t j = 0;
  for (; j + kMicroVecs * kWidth <= cols; j += kMicroVecs * kWidth) {
    gemm_columns<kMicroVecs>(a, b + j, b_row, c + j, c_row, rows, depth);
  }
  if (kMicroVecs > 2 && j + 2 * kWidth <= cols) {
    gemm_columns<2>(a, b + j, b_row, c + j, c_row, rows, depth);
    j += 2 * kWidth;
  }
  if (j < cols) gemm_columns<1>(a, b + j, b_row, c + j, c_row, rows, depth);
}

}  // namespace hocket::cpu::HOCKET_ISA
