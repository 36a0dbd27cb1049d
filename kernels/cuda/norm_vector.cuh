// A vector's part in the norm of its row (rms_norm.h).
#pragma once

#include "vector.cuh"

namespace hocket::cuda {

template <class T, int kVec>
__device__ float sum_squares(const Vector<T, kVec>& v) {
  float sum = 0;
  for (int j = 0; j < kVec; ++j) sum += v[j] * v[j];
  return sum;
}

// factor: of the row.
template <class T, int kVec>
__device__ Vector<T, kVec> multiply(Vector<T, kVec> v, float factor, const Vector<T, kVec>& weight) {
  for (int j = 0; j < kVec; ++j) v.set(j, v[j] * factor * weight[j]);
  return v;
}

}  // namespace hocket::cuda
