// Small dense products in float32 on data that fits the caches.
//
// Every sum has an order that depends on its own terms only, not on the rows and columns that are computed beside it.
#pragma once

#include "simd.h"

namespace hocket::cpu::HOCKET_ISA {

// Accumulators of one micro-kernel: kMicroRows x kMicroVecs vectors, as many as the registers hold.
constexpr int kMicroRows = 6;
constexpr int kMicroVecs = kWidth == 16 ? 4 : 2;

// A[i][k] is at data[i * row + k * col]. E: float, or pairs of bfloat16 that are multiplied at once (bf16_pairs.h).
template <class E>
struct StridedMatrix {
  const E* data;
  int64_t row;
  int64_t col;
};

inline Vec load_lanes(const float* p) { return load(p); }
inline Vec multiply_add(float a, Vec b, Vec sum) { return fma(a, b, sum); }

// sums[i][j] += A B over `depth` elements, at least 1, in ascending order.
template <int kRows, int kVecs, class E>
inline void accumulate(StridedMatrix<E> a, const E* b, int64_t b_row, int64_t depth, Vec (&sums)[kRows][kVecs]) {
  int64_t k = 0;
  do {
    decltype(load_lanes(b)) b_vec[kVecs];
    for (int j = 0; j < kVecs; ++j) b_vec[j] = load_lanes(b + k * b_row + j * kWidth);
    for (int i = 0; i < kRows; ++i) {
      const E a_ik = a.data[i * a.row + k * a.col];
      for (int j = 0; j < kVecs; ++j) sums[i][j] = multiply_add(a_ik, b_vec[j], sums[i][j]);
    }
  } while (++k < depth);
}

template <int kRows, int kVecs>
inline void store_sums(const Vec (&sums)[kRows][kVecs], float* c, int64_t c_row) {
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) store(c + i * c_row + j * kWidth, sums[i][j]);
  }
}

// C += A B, in ascending order of k.
struct AddInOrder {
  template <int kRows, int kVecs, class E>
  static void run(StridedMatrix<E> a, const E* b, int64_t b_row, float* c, int64_t c_row, int64_t depth) {
    Vec sums[kRows][kVecs];
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVecs; ++j) sums[i][j] = load(c + i * c_row + j * kWidth);
    }
    accumulate(a, b, b_row, depth, sums);
    store_sums(sums, c, c_row);
  }
};

// C = A B, in the order of a vector that is filled in ascending order of k and then summed over its lanes (sum_each()
// of simd.h): sum l of kWidth takes each k that is l modulo kWidth, then one half of the sums is added to the other.
struct StoreByLanes {
  // REQUIRES: depth is a multiple of kWidth, and not 0.
  template <int kRows, int kVecs, class E>
  static void run(StridedMatrix<E> a, const E* b, int64_t b_row, float* c, int64_t c_row, int64_t depth) {
    const Lanes<E> lanes{a, b, b_row, depth / kWidth};
    store_sums(sum_lanes<0, 1, kRows, kVecs>(lanes).at, c, c_row);
  }

 private:
  template <class E>
  struct Lanes {
    StridedMatrix<E> a;
    const E* b;
    int64_t b_row;
    int64_t depth;  // of each
  };

  template <int kRows, int kVecs>
  struct Sums {
    Vec at[kRows][kVecs];
  };

  // Of the lanes that are kFirst modulo kStep. All places are known when this is compiled: a sum waits for its other
  // half where the addition finds it, without a register of its own.
  template <int kFirst, int kStep, int kRows, int kVecs, class E>
  [[gnu::always_inline]] static Sums<kRows, kVecs> sum_lanes(const Lanes<E>& lanes) {
    if constexpr (kStep == kWidth) {
      const auto& [a, b, b_row, depth] = lanes;
      Sums<kRows, kVecs> sums = {};
      accumulate<kRows, kVecs, E>({a.data + kFirst * a.col, a.row, a.col * kWidth}, b + kFirst * b_row, b_row * kWidth,
                                  depth, sums.at);
      return sums;
    } else {
      const auto half = sum_lanes<kFirst, 2 * kStep, kRows, kVecs>(lanes);
      auto sums = sum_lanes<kFirst + kStep, 2 * kStep, kRows, kVecs>(lanes);
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kVecs; ++j) sums.at[i][j] = half.at[i][j] + sums.at[i][j];
      }
      return sums;
    }
  }
};

template <class Micro, int kVecs, class E>
void gemm_columns(StridedMatrix<E> a, const E* b, int64_t b_row, float* c, int64_t c_row, int64_t rows, int64_t depth) {
  int64_t i = 0;
  const auto step = [&]<int kRows>() {
    Micro::template run<kRows, kVecs, E>({a.data + i * a.row, a.row, a.col}, b, b_row, c + i * c_row, c_row, depth);
    i += kRows;
  };
  while (i + kMicroRows <= rows) step.template operator()<kMicroRows>();
  if (i + 4 <= rows) step.template operator()<4>();
  if (i + 2 <= rows) step.template operator()<2>();
  if (i < rows) step.template operator()<1>();
}

// A [rows][depth], B [depth][cols] and C [rows][cols] with rows b_row and c_row apart. Micro: AddInOrder, StoreByLanes.
// REQUIRES: cols is a multiple of kWidth.
template <class Micro, class E>
inline void gemm(StridedMatrix<E> a, const E* b, int64_t b_row, float* c, int64_t c_row, int64_t rows, int64_t cols,
                 int64_t depth) {
  int64_t j = 0;
  for (; j + kMicroVecs * kWidth <= cols; j += kMicroVecs * kWidth) {
    gemm_columns<Micro, kMicroVecs>(a, b + j, b_row, c + j, c_row, rows, depth);
  }
  if (kMicroVecs > 2 && j + 2 * kWidth <= cols) {
    gemm_columns<Micro, 2>(a, b + j, b_row, c + j, c_row, rows, depth);
    j += 2 * kWidth;
  }
  if (j < cols) gemm_columns<Micro, 1>(a, b + j, b_row, c + j, c_row, rows, depth);
}

}  // namespace hocket::cpu::HOCKET_ISA
