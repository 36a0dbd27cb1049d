// Elements as float32, and loads of 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace hocket::cuda {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half(x);
}

// Elements of T in one load of 16 bytes.
template <class T>
constexpr int kVectorSize = 16 / static_cast<int>(sizeof(T));

// kSize elements that are loaded and stored at once. Aligned to their size where kSize > 1.
template <class T, int kSize>
struct alignas(kSize * sizeof(T)) Vector {
  T values[kSize];

  __device__ float operator[](int i) const { return to_float(values[i]); }
  __device__ void set(int i, float x) { values[i] = from_float<T>(x); }
};

template <int kSize, class T>
__device__ Vector<T, kSize> load_vector(const T* p) {
  return *reinterpret_cast<const Vector<T, kSize>*>(p);
}

template <int kSize, class T>
__device__ void store_vector(T* p, const Vector<T, kSize>& v) {
  *reinterpret_cast<Vector<T, kSize>*>(p) = v;
}

inline bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace hocket::cuda
