// Takes the place of kernels/cuda/mma.cuh in the emulated build: the same instructions, written out. The fragment
// layouts are those of the PTX manual; the real ones are documented in kernels/cuda/mma.cuh.
#pragma once

#include "launch.cuh"

namespace hocket::cuda {

struct MmaFragments {
  uint32_t a[4];
  uint32_t b[2];
};

// The lower or upper 16 bits of a register as a number.
template <class T>
float half_of(uint32_t bits, int upper) {
  const auto half = static_cast<uint16_t>(upper ? bits >> 16 : bits);
  T value;
  std::memcpy(static_cast<void*>(&value), &half, sizeof(value));
  return to_float(value);
}

template <class T>
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T) {
  struct Result {
    float c[4];
  };
  const Result result = emulation::exchange(MmaFragments{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](auto of) {
    Result r{{c[0], c[1], c[2], c[3]}};
    for (int i = 0; i < 4; ++i) {
      const int row = emulation::lane() / 4 + i / 2 * 8, column = emulation::lane() % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        const uint32_t a_bits = of(row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2];
        const uint32_t b_bits = of(column * 4 + k % 8 / 2).b[k / 8];
        r.c[i] += half_of<T>(a_bits, k % 2) * half_of<T>(b_bits, k % 2);
      }
    }
    return r;
  });
  std::memcpy(c, result.c, sizeof(c));
}

template <bool kTransposed>
void load_matrices_as(uint32_t (&r)[4], const void* row) {
  struct Result {
    uint32_t r[4];
  };
  const Result result = emulation::exchange(static_cast<const uint16_t*>(row), [&](auto of) {
    Result loaded{};
    for (int m = 0; m < 4; ++m) {
      for (int i = 0; i < 2; ++i) {
        const int g = emulation::lane() / 4, t = emulation::lane() % 4 * 2 + i;
        const uint32_t bits = kTransposed ? of(m * 8 + t)[g] : of(m * 8 + g)[t];
        loaded.r[m] |= bits << (16 * i);
      }
    }
    return loaded;
  });
  std::memcpy(r, result.r, sizeof(r));
}
inline void load_matrices(uint32_t (&r)[4], const void* row) { load_matrices_as<false>(r, row); }
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) { load_matrices_as<true>(r, row); }

inline void copy_async(void* to, const void* from, bool is_valid) { emulation::copy_async(to, from, is_valid); }
inline void commit_copies() { emulation::commit_copies(); }
template <int kPending>
void wait_for_copies() {
  emulation::wait_for_copies(kPending);
}

inline float exp2_approximate(float x) { return exp2f(x); }

template <class T>
uint32_t pack(float low, float high, T) {
  const T pair[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return bits;
}

}  // namespace hocket::cuda
