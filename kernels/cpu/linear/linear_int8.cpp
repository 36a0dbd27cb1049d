#include "linear/linear_int8.h"

#include "ahead.h"
#include "linear/int8_dot.h"
#include "linear/int8_rows.h"
#include "linear/linear_epilogue.h"
#include "linear/linear_int8_amx.h"
#include "linear/vnni.h"
#include "threads/parallel.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

constexpr int64_t kAheadBytes = 8192;
constexpr int kMaxSums = 6;                    // rows whose float32 sums find registers where the weight is asked for
constexpr int64_t kVectorsBytes = 4 * kPanel;  // of a panel: what two vectors hold

// Dot, Weights: of int8_dot.h.
template <class Dot, class Weights>
class Int8Product {
 public:
  // REQUIRES: x has rows.
  Int8Product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out)
      : weight_(weight),
        x_(x.data, weight.in_features),
        out_(out),
        num_rows_(x.num_rows),
        panel_bytes_(panel_bytes(weight.dtype, weight.in_features)) {}

  void run(int64_t panel_begin, int64_t panel_end) const {
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      if (num_rows_ > Dot::kMaxRowsAlone) {
        run_groups(panel);
      } else {
        run_group<Dot::kMaxRowsAlone, true>(0, num_rows_, panel, {});
      }
    }
  }

 private:
  static constexpr int64_t kScalesBytes = kPanel * static_cast<int64_t>(sizeof(typename Weights::Scale));
  static constexpr int64_t kLine = 64;

  // While the groups use one panel, the next one is asked for, in equal parts.
  void run_groups(int64_t panel) const {
    const int64_t groups = ceil_div(num_rows_, int64_t{Dot::kMaxRows});
    const int64_t part = ceil_div(panel_bytes_, groups), times = ceil_div(panel_bytes_, kVectorsBytes);
    const char* next = static_cast<const char*>(weight_.panels) + (panel + 1) * panel_bytes_;
    for (int64_t g = 0; g < groups; ++g, next += part) {
      const int64_t first = num_rows_ * g / groups, end = num_rows_ * (g + 1) / groups;
      run_group<Dot::kMaxRows, false>(first, end - first, panel, {next, min(kLine, ceil_div(part, times))});
    }
  }

  template <int kRows, bool kIsOnly>
  void run_group(int64_t row, int64_t num_rows, int64_t panel, Ahead ahead) const {
    if (num_rows == kRows) return tile<kRows, kIsOnly>(row, panel, ahead);
    if constexpr (kRows > (kIsOnly ? 1 : Dot::kMaxRows / 2)) {
      run_group<kRows - 1, kIsOnly>(row, num_rows, panel, ahead);
    }
  }

  // kRows rows from `row` on. kIsOnly: there are no others, and a little further down memory is asked for; else `ahead`
  // is. One panel at a time also for few rows: two streams for each thread come slower than one. Not inlined: among
  // others its loops find too few registers.
  template <int kRows, bool kIsOnly>
  [[gnu::noinline]] void tile(int64_t row, int64_t panel, Ahead ahead) const {
    const int8_t* weights = static_cast<const int8_t*>(weight_.panels) + panel * panel_bytes_;
    Vec sums[kRows][2];  // loops over it and over dots are unrolled: dots are registers, sums of few rows too
#pragma GCC unroll 16
    for (auto& of_row : sums) of_row[0] = of_row[1] = Vec{};
    for (int64_t k = 0; k < weight_.in_features; k += Weights::kBlock) {
      const int64_t n = min(Weights::kBlock, weight_.in_features - k);
      IntVec dots[kRows][2];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) dots[r][0] = dots[r][1] = Weights::kIsJoined ? IntVec{} : begin(row + r, k);
      const int64_t steps = ceil_div(n, 4 * Weights::kQuads);
      add_block<kIsOnly>(x_.values(row) + k, weights, steps, ahead, dots);
      if constexpr (Weights::kIsJoined) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const IntVec first = begin(row + r, k);
#pragma GCC unroll 2
          for (IntVec& dot : dots[r]) dot = first + Dot::join(dot);
        }
      }
      weights += steps * kVectorsBytes;
      if constexpr (kIsOnly) {
        prefetch<kScalesBytes>(weights + kAheadBytes);
      } else {
        ahead.ask();
      }
      add_scaled(row, k, weights, dots, sums);
      if constexpr (kIsOnly && kRows > kMaxSums) asm("" : "+m"(sums));  // or dots are moved about instead
      weights += kScalesBytes;
    }
    Vec results[kRows][2];  // what is handed over cannot be registers
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      results[r][0] = sums[r][0];
      results[r][1] = sums[r][1];
    }
    write_tile(weight_, out_, row, kRows, panel, 1, results[0]);
  }

  // What the dot over the block at k begins at.
  [[gnu::always_inline]] IntVec begin(int64_t row, int64_t k) const {
    if constexpr (Weights::kOffset == 0) return IntVec{};
    return splat(x_.template begin<Weights::kBlock>(row, k));
  }

  // Inlined, so that dots stay in registers.
  template <bool kIsOnly, int kRows>
  [[gnu::always_inline]] void add_block(const int8_t* x, const int8_t* weights, int64_t steps, Ahead& ahead,
                                        IntVec (&dots)[kRows][2]) const {
    constexpr int kQuads = Weights::kQuads;
    const int64_t stride = x_.stride();
    const int8_t* thirds[(kRows + 2) / 3];  // every third row: the two behind it are one and two strides away
#pragma GCC unroll 16
    for (int i = 0; i < (kRows + 2) / 3; ++i) thirds[i] = x + 3 * i * stride;
    for (int64_t step = 0; step < steps; ++step, weights += kVectorsBytes) {
      UintVec w[2][kQuads];
      if constexpr (kIsOnly) {
        prefetch<kVectorsBytes>(weights + kAheadBytes);
      } else {
        ahead.ask();
      }
      for (int j = 0; j < 2; ++j) Weights::unpack(load_quads(weights + j * 4 * kWidth), w[j]);
#pragma GCC unroll 16
      for (const int8_t*& rows : thirds) asm("" : "+r"(rows));  // or the compiler makes a pointer of each row
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int q = 0; q < kQuads; ++q) {
          const auto quad = Dot::quad(thirds[r / 3] + r % 3 * stride + 4 * q);
          dots[r][0] = Weights::add(dots[r][0], quad, w[0][q]);
          dots[r][1] = Weights::add(dots[r][1], quad, w[1][q]);
        }
      }
#pragma GCC unroll 16
      for (const int8_t*& rows : thirds) rows += 4 * kQuads;
    }
  }

  // kBytes from `place` on; past the end of a panel comes the next one.
  template <int64_t kBytes>
  [[gnu::always_inline]] static void prefetch(const int8_t* place) {
    for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(place + line);
  }

  // scales: of the block, behind its weights.
  template <int kRows>
  [[gnu::always_inline]] void add_scaled(int64_t row, int64_t k, const int8_t* scales, const IntVec (&dots)[kRows][2],
                                         Vec (&sums)[kRows][2]) const {
    const auto* of_columns = reinterpret_cast<const typename Weights::Scale*>(scales);
    const Vec columns[2] = {load(of_columns), load(of_columns + kWidth)};
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec of_row = splat(x_.scale(row + r, k));
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        sums[r][j] = fma(__builtin_convertvector(dots[r][j], Vec), of_row * columns[j], sums[r][j]);
      }
    }
  }

  const PackedWeight& weight_;
  Int8Rows x_;
  const ProductOutput& out_;
  int64_t num_rows_;
  int64_t panel_bytes_;
};

template <class Dot>
void run_panels(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out, int64_t begin,
                int64_t end) {
  if (weight.dtype == DType::kInt8Blocks) return Int8Product<Dot, Int8Weights<Dot>>(weight, x, out).run(begin, end);
  Int8Product<Dot, Int4Weights<Dot>>(weight, x, out).run(begin, end);
}

}  // namespace

int64_t int8_panels_together([[maybe_unused]] int64_t num_rows) {
#ifdef __AVX512BF16__
  if (uses_amx()) return num_rows <= kTileSize ? 2 : 1;
#endif
  return 1;
}

void int8_panels(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out, int64_t begin,
                 int64_t end) {
#ifdef __AVX512BF16__
  // Fewer rows take vectors no longer.
  if (uses_amx() && x.num_rows >= (weight.dtype == DType::kInt8Blocks ? 6 : 8)) {
    if (weight.dtype == DType::kInt8Blocks) return AmxInt8Product<Int8Weights<PairDot>>(weight, x, out).run(begin, end);
    return AmxInt8Product<Int4Weights<PairDot>>(weight, x, out).run(begin, end);
  }
#endif
#if HOCKET_SIMD_WIDTH == 16 && defined(__AVX512BW__)
  if (uses_vnni()) return run_panels<ByteDot>(weight, x, out, begin, end);
#endif
  run_panels<PairDot>(weight, x, out, begin, end);
}

ProductInput to_int8_rows(const ProductInput& x, int64_t in_features) {
  const int64_t stride = Int8RowLayout(in_features).stride;
  auto* rows = static_cast<int8_t*>(scratch(Scratch::kActivations, static_cast<size_t>(x.num_rows * stride)));
  parallel_ranges(x.num_rows, 2 * in_features, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      quantize_row(static_cast<const float*>(x.data) + row * x.stride, in_features, rows + row * stride);
    }
  });
  return {rows, stride, x.num_rows, DType::kInt8Blocks};
}

}  // namespace hocket::cpu::HOCKET_ISA
