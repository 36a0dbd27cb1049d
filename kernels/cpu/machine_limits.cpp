#include "machine_limits.h"

#include <type_traits>

#include "cpu.h"
#include "kernels.h"
#include "linear/amx.h"
#include "linear/int8_dot.h"
#include "linear/vnni.h"
#include "simd.h"
#include "threads/parallel.h"

namespace hocket::cpu::HOCKET_ISA {

float read_limit(const void* data, int64_t bytes) {
  constexpr int64_t kPiece = 256 * 1024, kAhead = 2048;  // bytes, floats
  float total = 0;
  parallel_stretches(ceil_div(bytes, kPiece), [&](int64_t i) {
    const float* p = static_cast<const float*>(data) + i * kPiece / 4;
    const float* end = static_cast<const float*>(data) + min(bytes, (i + 1) * kPiece) / 4;
    Vec sums[8] = {};
    for (; p < end; p += 8 * kWidth) {
      for (int line = 0; line < 8 * kWidth; line += 16) __builtin_prefetch(p + line + kAhead, 0, 3);
      for (int j = 0; j < 8; ++j) sums[j] += load(p + j * kWidth);
    }
    float piece = 0;
    for (int j = 0; j < 8; ++j) piece += sum(sums[j]);
    if (piece != piece) __atomic_store(&total, &piece, __ATOMIC_RELAXED);
  });
  return total;
}

namespace {

// kChains: sums that do not wait for each other; AVX-512's products of bfloat16 take six cycles, two begin in each.
#if defined(__AVX512F__)
constexpr int kChains = 16;
constexpr size_t kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kChains = 12;
constexpr size_t kRegisterBytes = 32;
#else
constexpr int kChains = 12;
constexpr size_t kRegisterBytes = 16;
#endif

// What x is shall not be known any more, so that what is made of it is made again.
template <class X>
void hide(X& x) {
  if constexpr (std::is_pointer_v<X>) {
    asm volatile("" : "+r"(x) : : "memory");
  } else if constexpr (sizeof(X) > kRegisterBytes) {
    asm volatile("" : "+m"(x));
  } else {
    asm volatile("" : "+x"(x));
  }
}

// rounds times sums = step(sums, x) on each thread, kChains vectors of them, all in registers.
template <class Sum, class X, class Step>
void run_rounds(int64_t rounds, X of_all, const Step& step) {
  parallel_tasks(num_threads(), [&](int64_t) {
    X x = of_all;
    Sum sums[kChains];
    for (int j = 0; j < kChains; ++j) {
      sums[j] = Sum{} + static_cast<std::remove_cvref_t<decltype(Sum{}[0])>>(j);  // else one chain would do for all
    }
    for (int64_t i = 0; i < rounds; ++i) {
      for (int j = 0; j < kChains; ++j) {
        hide(x);  // or what depends on x alone is done once for all chains
        sums[j] = step(sums[j], x);
      }
    }
    for (int j = 0; j < kChains; ++j) hide(sums[j]);
  });
}

// Products of int8 by int8.
template <class Dot>
int64_t run_quads(int64_t rounds) {
  static constexpr int8_t kOnes[4] = {1, 1, 1, 1};
  const UintVec weights = Dot::prepare(UintVec{} + 0x01010101u);
  run_rounds<IntVec>(rounds, Dot::quad(kOnes), [weights](IntVec sum, auto x) { return Dot::add(sum, x, weights); });
  return 4 * rounds;
}

#ifdef __AVX512BF16__
// kChains / 4 times four products of tiles that stay in their registers; returns their multiplications and additions.
template <class Kind>
int64_t run_tiles(int64_t rounds) {
  parallel_tasks(num_threads(), [&](int64_t) {
    Tiles tiles;
    tiles.take_rows(2 * kTileSize);
    zero_tiles<4>();
    zero_tile<4>();
    zero_tile<5>();
    zero_tile<6>();
    zero_tile<7>();
    for (int64_t i = 0; i < rounds * kChains / 4; ++i) {
      Kind::template multiply_add<0, 4, 6>();
      Kind::template multiply_add<1, 4, 7>();
      Kind::template multiply_add<2, 5, 6>();
      Kind::template multiply_add<3, 5, 7>();
    }
  });
  return 2 * rounds * num_threads() * kChains * kTileSize * kTileSize * kTileBytes / Kind::kElementBytes;
}
#endif

int64_t num_products(int64_t rounds) { return rounds * num_threads() * kChains * kWidth; }

}  // namespace

int64_t arithmetic_limit(int64_t rounds, [[maybe_unused]] DType dtype) {
#ifdef __AVX512BF16__
  if (uses_amx() && dtype == DType::kBFloat16) return run_tiles<Bf16Tiles>(rounds);
  if (uses_amx() && dtype == DType::kInt8Blocks) return run_tiles<Int8Tiles>(rounds);
  if (dtype == DType::kBFloat16) {
    const __m512i halves = _mm512_set1_epi32(0x3f003f00);  // pairs of 0.5
    run_rounds<Vec>(rounds, halves, [](Vec sum, __m512i x) {
      const auto pairs = bit_cast<__m512bh>(x);
      return static_cast<Vec>(_mm512_dpbf16_ps(sum, pairs, pairs));
    });
    return 2 * 2 * num_products(rounds);
  }
#endif
  if (dtype == DType::kInt8Blocks) {
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512BW__)
    return 2 * num_products(uses_vnni() ? run_quads<ByteDot>(rounds) : run_quads<PairDot>(rounds));
#else
    return 2 * num_products(run_quads<PairDot>(rounds));
#endif
  }
  const Vec term = splat(1.0f);
  run_rounds<Vec>(rounds, splat(0.5f), [term](Vec sum, Vec factor) { return fma(sum, factor, term); });
  return 2 * num_products(rounds);
}

}  // namespace hocket::cpu::HOCKET_ISA
