// The rotation of rope_kv_write.h, some pairs at a time.
#pragma once

#include "vector.cuh"

namespace hocket::cuda {

// kSize floats, 16 bytes a load where they come in fours.
template <int kSize>
struct Floats {
  float values[kSize];

  Floats() = default;
  __device__ explicit Floats(const float* from) {
    constexpr int kStep = kSize % 4 == 0 ? 4 : 1;
#pragma unroll
    for (int i = 0; i < kSize; i += kStep) {
      const Vector<float, kStep> v = load_vector<kStep>(from + i);
      for (int j = 0; j < kStep; ++j) values[i + j] = v[j];
    }
  }
};

// Rotates the pairs (a[j], b[j]) to to[j] and to[j + half]. cos, sin: of these pairs.
template <class T, int kVec>
__device__ void rotate(const Vector<T, kVec>& a, const Vector<T, kVec>& b, const Floats<kVec>& cos,
                       const Floats<kVec>& sin, T* to, int64_t half) {
  Vector<T, kVec> first, second;
  for (int j = 0; j < kVec; ++j) {
    first.set(j, a[j] * cos.values[j] - b[j] * sin.values[j]);
    second.set(j, b[j] * cos.values[j] + a[j] * sin.values[j]);
  }
  store_vector(to, first);
  store_vector(to + half, second);
}

// Likewise. cos, sin: where those of the first pair are.
template <class T, int kVec>
__device__ void rotate(const Vector<T, kVec>& a, const Vector<T, kVec>& b, const float* cos, const float* sin, T* to,
                       int64_t half) {
  rotate(a, b, Floats<kVec>(cos), Floats<kVec>(sin), to, half);
}

}  // namespace hocket::cuda
