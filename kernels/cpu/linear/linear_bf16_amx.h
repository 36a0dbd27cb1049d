// The product of linear_bf16.h by tiles of AMX: ten times the arithmetic of vdpbf16ps, in another order of the sums.
// What of k does not fill a tile is added by vdpbf16ps. int8 weights become bfloat16 on the way: step by step for up to
// 16 rows, else a panel at a time.
#pragma once

#ifdef __AVX512BF16__

#include "linear/amx.h"
#include "linear/bf16_pairs.h"
#include "linear/linear_epilogue.h"
#include "linear/linear_product.h"
#include "simd.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

// T: BFloat16 or int8_t, the weight's.
template <class T>
class AmxBf16Product {
 public:
  // REQUIRES: x is bfloat16 and has rows.
  AmxBf16Product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out)
      : weight_(weight),
        x_(x),
        out_(out),
        num_pairs_(ceil_div(weight.in_features, 2)),
        num_steps_(weight.in_features / kStep),
        panel_size_(panel_size<T>(weight.in_features)) {}

  // Panels that are best taken together for so many rows.
  static int64_t panels_together(int64_t num_rows) { return num_rows <= kTileSize ? 2 : 1; }

  void run(int64_t panel_begin, int64_t panel_end) const {
    Tiles tiles;
    int64_t panel = panel_begin;
    if (x_.num_rows <= kTileSize) {
      tiles.take_rows(x_.num_rows);
      const Part whole{0, num_steps_, nullptr};
      for (; panel + 2 <= panel_end; panel += 2) multiply<1, 2>(0, x_.num_rows, panel, packed(panel), nullptr, whole);
      if (panel < panel_end) multiply<1, 1>(0, x_.num_rows, panel, packed(panel), nullptr, whole);
      return;
    }
    for (; panel < panel_end; ++panel) run_groups(panel, tiles);
  }

 private:
  static constexpr int64_t kStep = 32;              // of k
  static constexpr int64_t kRowBytes = 4 * kPanel;  // a pair of k, for all columns of a panel
  static constexpr int64_t kAheadBytes = 8192;
  static constexpr int64_t kStepsOfPart = 8;    // 16 KB of a panel, of the 48 that L1 has on CPUs with tiles
  static constexpr int64_t kGroupsOfParts = 3;  // of rows, from which on it pays
  static constexpr int64_t kSumsBytes = 4 * kTileSize * kTileBytes;  // of a group

  const T* packed(int64_t panel) const { return static_cast<const T*>(weight_.panels) + panel * panel_size_; }

  // `num_pairs` pairs of k as bfloat16.
  static void convert(const T* from, int64_t num_pairs, BFloat16* to) {
    for (int64_t pair = 0; pair < num_pairs; ++pair, from += 2 * kPanel, to += 2 * kPanel) {
      __m512bh vectors[2];
      load_panel(from, vectors);
      __builtin_memcpy(to, vectors, sizeof(vectors));
    }
  }

  void run_groups(int64_t panel, Tiles& tiles) const {
    if constexpr (sizeof(T) == 2) {
      run_groups(panel, packed(panel), tiles);
    } else {
      const auto bytes = static_cast<size_t>(num_pairs_ * kRowBytes);
      auto* converted = static_cast<BFloat16*>(scratch(Scratch::kItem, bytes));
      convert(packed(panel), num_pairs_, converted);
      run_groups(panel, converted, tiles);
    }
  }

  void run_groups(int64_t panel, const BFloat16* weights, Tiles& tiles) const {
    const char* next = reinterpret_cast<const char*>(packed(panel + 1));
    const int64_t lines = ceil_div(panel_size_ * static_cast<int64_t>(sizeof(T)), int64_t{64});
    const int64_t groups = ceil_div(x_.num_rows, 2 * kTileSize);
    const int64_t parts = groups < kGroupsOfParts ? 1 : max(num_steps_ / kStepsOfPart, int64_t{1});
    auto* kept = static_cast<int8_t*>(scratch(Scratch::kSums, static_cast<size_t>(groups * kSumsBytes)));
    for (int64_t i = 0, begin = 0; i < parts; ++i) {
      const int64_t end = num_steps_ * (i + 1) / parts;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t row = g * 2 * kTileSize, num_rows = min(x_.num_rows - row, 2 * kTileSize);
        const int64_t turn = i * groups + g, turns = parts * groups;
        const Ahead ahead{next + lines * turn / turns * 64, next + lines * (turn + 1) / turns * 64};
        const Part part{begin, end, kept + g * kSumsBytes};
        tiles.take_rows(num_rows);
        if (num_rows > kTileSize) {
          multiply<2, 1>(row, num_rows, panel, weights, &ahead, part);
        } else {
          multiply<1, 1>(row, num_rows, panel, weights, &ahead, part);
        }
      }
      begin = end;
    }
  }

  // Of k, whose slice of a panel stays in L1 while all groups of rows use it; their sums are kept meanwhile.
  struct Part {
    int64_t begin;  // steps
    int64_t end;
    int8_t* kept;
  };

  // What to ask for meanwhile.
  struct Ahead {
    const char* begin;
    const char* end;
  };

  // num_rows rows from `row` on, kPanels panels from `panel` on, whose weights are at `weights`, as bfloat16 or as they
  // are packed. Without `ahead` there are no other rows.
  template <int kRowTiles, int kPanels, class W>
  void multiply(int64_t row, int64_t num_rows, int64_t panel, const W* weights, const Ahead* ahead,
                const Part& steps) const {
    constexpr int kSums = 2 * (kRowTiles > kPanels ? kRowTiles : kPanels);
    constexpr int64_t kStepSize = kStep * kPanel;
    const BFloat16* x = static_cast<const BFloat16*>(x_.data) + row * x_.stride;
    const int64_t x_stride = x_.stride * static_cast<int64_t>(sizeof(BFloat16));
    const int64_t between = sizeof(W) == sizeof(T) ? panel_size_ : 0;  // panels, where there are two
    const char* next = ahead == nullptr ? nullptr : ahead->begin;
    const int64_t part =
        ahead == nullptr ? 0 : ceil_div(ahead->end - ahead->begin, 64 * max<int64_t>(steps.end - steps.begin, 1));
    [[maybe_unused]] alignas(64) BFloat16 converted[kPanels * kStepSize];
    if (steps.begin == 0) {
      zero_tiles<kSums>();
    } else {
      load_tiles<kSums>(steps.kept);
    }
    for (int64_t i = steps.begin; i < steps.end; ++i) {
      const W* step = weights + i * kStepSize;
      if (ahead == nullptr) {
        for (int p = 0; p < kPanels; ++p) ask_for_step(reinterpret_cast<const char*>(step + p * between) + kAheadBytes);
      } else {
        for (int64_t line = 0; line < part && next < ahead->end; ++line, next += 64) _mm_prefetch(next, _MM_HINT_T1);
      }
      if constexpr (sizeof(W) == 2) {
        add_step<Bf16Tiles, kRowTiles, kPanels>(x + i * kStep, x_stride, step, kRowBytes, between * 2);
      } else {
        for (int p = 0; p < kPanels; ++p) convert(step + p * between, kStep / 2, converted + p * kStepSize);
        add_step<Bf16Tiles, kRowTiles, kPanels>(x + i * kStep, x_stride, converted, kRowBytes, kStepSize * 2);
      }
    }
    if (steps.end < num_steps_) return store_tiles<kSums>(steps.kept);
    alignas(64) float sums[kSums][kTileSize][kWidth];
    store_tiles<kSums>(sums);
    for (int p = 0; p < kPanels; ++p) {
      const W* columns = weights + p * between;
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t tile = kPanels == 1 ? r / kTileSize : p, place = r % kTileSize;
        Vec of_row[2] = {load(sums[2 * tile][place]), load(sums[2 * tile + 1][place])};
        add_rest(x + r * x_.stride, columns, of_row[0], of_row[1]);
        restore_order<T>(of_row[0], of_row[1]);
        write_panel(weight_, out_, row + r, 1, panel + p, of_row, 2);
      }
    }
  }

  // The pairs of k behind the last whole step.
  template <class W>
  [[gnu::always_inline]] void add_rest(const BFloat16* x, const W* weights, Vec& first, Vec& second) const {
    for (int64_t pair = num_steps_ * kStep / 2; pair < num_pairs_; ++pair) {
      const __m512bh x_pair = splat_pair(x + 2 * pair);
      __m512bh w[2];
      load_panel(weights + pair * 2 * kPanel, w);
      first = bit_cast<Vec>(_mm512_dpbf16_ps(bit_cast<__m512>(first), x_pair, w[0]));
      second = bit_cast<Vec>(_mm512_dpbf16_ps(bit_cast<__m512>(second), x_pair, w[1]));
    }
  }

  static void ask_for_step(const char* step) {
    constexpr int64_t kBytes = kStep * kPanel * static_cast<int64_t>(sizeof(T));
    for (int64_t line = 0; line < kBytes; line += 64) _mm_prefetch(step + line, _MM_HINT_T0);
  }

  const PackedWeight& weight_;
  const ProductInput& x_;
  const ProductOutput& out_;
  int64_t num_pairs_;
  int64_t num_steps_;   // whole ones
  int64_t panel_size_;  // elements
};

}  // namespace hocket::cpu::HOCKET_ISA

#endif
