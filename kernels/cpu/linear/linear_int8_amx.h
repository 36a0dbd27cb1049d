// The product of linear_int8.h by tiles of AMX, with the same results: integers within a block, then the same float32
// operations in the same order.
#pragma once

#include "linear/amx.h"

#ifdef __AVX512BF16__

#include "linear/int8_dot.h"
#include "linear/int8_rows.h"
#include "linear/linear_epilogue.h"

namespace hocket::cpu::HOCKET_ISA {

// Block: Weights of int8_dot.h, whose integers a tile takes as they are.
template <class Block>
class AmxInt8Product {
 public:
  // REQUIRES: x has rows.
  AmxInt8Product(const PackedWeight& weight, const ProductInput& x, const ProductOutput& out)
      : weight_(weight),
        x_(x.data, weight.in_features),
        out_(out),
        num_rows_(x.num_rows),
        panel_bytes_(panel_bytes(weight.dtype, weight.in_features)) {}

  void run(int64_t panel_begin, int64_t panel_end) const {
    Tiles tiles(kStep);
    int64_t panel = panel_begin;
    if (num_rows_ <= kTileSize) {
      tiles.take_rows(num_rows_);
      for (; panel + 2 <= panel_end; panel += 2) multiply<1, 2>(0, num_rows_, panel);
      if (panel < panel_end) multiply<1, 1>(0, num_rows_, panel);
      return;
    }
    for (; panel < panel_end; ++panel) {
      for (int64_t row = 0; row < num_rows_; row += 2 * kTileSize) {
        const int64_t num_rows = min(num_rows_ - row, 2 * kTileSize);
        tiles.take_rows(num_rows);
        num_rows > kTileSize ? multiply<2, 1>(row, num_rows, panel) : multiply<1, 1>(row, num_rows, panel);
      }
    }
  }

 private:
  static constexpr int64_t kStep = min(Block::kBlock, kTileBytes);   // of k
  static constexpr int64_t kRowBytes = 4 * kPanel;                   // four k, or eight of int4, for a panel's columns
  static constexpr int64_t kTileRows = kStep / 4;                    // of a tile
  static constexpr int64_t kPackedRows = kTileRows / Block::kQuads;  // of a step
  static constexpr int64_t kStepBytes = kPackedRows * kRowBytes;
  static constexpr int64_t kAheadBytes = 8192;

  const int8_t* packed(int64_t panel) const {
    return static_cast<const int8_t*>(weight_.panels) + panel * panel_bytes_;
  }

  // num_rows rows from `row` on, kPanels panels from `panel` on.
  template <int kRowTiles, int kPanels>
  void multiply(int64_t row, int64_t num_rows, int64_t panel) const {
    constexpr int kSums = 2 * (kRowTiles > kPanels ? kRowTiles : kPanels);
    alignas(64) float sums[kSums][kTileSize][kWidth];
    for (auto& tile : sums) {
      for (int64_t r = 0; r < min(num_rows, kTileSize); ++r) store(tile[r], Vec{});
    }
    alignas(64) int32_t dots[kSums][kTileSize][kWidth];
    const int8_t* weights = packed(panel);
    const int8_t* scales = nullptr;  // of the block before, whose dots wait while the next ones are multiplied
    for (int64_t k = 0; k < weight_.in_features; k += Block::kBlock) {
      const int64_t packed_rows = ceil_div(min(Block::kBlock, weight_.in_features - k), 4 * Block::kQuads);
      zero_tiles<kSums>();
      for (int64_t done = 0; done < packed_rows; done += kPackedRows) {
        add_part<kRowTiles, kPanels>(row, k + done * 4 * Block::kQuads, weights + done * kRowBytes,
                                     min(kPackedRows, packed_rows - done));
      }
      if (scales != nullptr) add_scaled<kRowTiles, kPanels>(row, num_rows, k - Block::kBlock, scales, dots, sums);
      store_tiles<kSums>(dots);
      scales = weights + packed_rows * kRowBytes;
      weights = scales + kPanel * static_cast<int64_t>(sizeof(typename Block::Scale));
    }
    const int64_t last = (weight_.in_features - 1) / Block::kBlock * Block::kBlock;
    add_scaled<kRowTiles, kPanels>(row, num_rows, last, scales, dots, sums);
    for (int p = 0; p < kPanels; ++p) {
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t tile = kPanels == 1 ? r / kTileSize : p, place = r % kTileSize;
        Vec of_row[2] = {load(sums[2 * tile][place]), load(sums[2 * tile + 1][place])};
        write_panel(weight_, out_, row + r, 1, panel + p, of_row, 2);
      }
    }
  }

  // One step along k, of which the panels have `packed_rows` rows.
  template <int kRowTiles, int kPanels>
  [[gnu::always_inline]] void add_part(int64_t row, int64_t k, const int8_t* weights, int64_t packed_rows) const {
    constexpr int64_t kTile = kTileRows * kRowBytes;
    const int8_t* x = x_.values(row) + k;
    for (int p = 0; p < kPanels; ++p) {
      const int8_t* ahead = weights + p * panel_bytes_ + kAheadBytes;
      for (int64_t line = 0; line < kStepBytes; line += 64) __builtin_prefetch(ahead + line);
    }
    if (Block::kQuads == 1 && packed_rows == kPackedRows) {
      return add_step<Int8Tiles, kRowTiles, kPanels>(x, x_.stride(), weights, kRowBytes, panel_bytes_);
    }
    alignas(64) int8_t unpacked[kPanels * kTile];
    if (packed_rows < kPackedRows) __builtin_memset(unpacked, 0, sizeof(unpacked));
    for (int p = 0; p < kPanels; ++p) unpack(weights + p * panel_bytes_, packed_rows, unpacked + p * kTile);
    add_step<Int8Tiles, kRowTiles, kPanels>(x, x_.stride(), unpacked, kRowBytes, kTile);
  }

  [[gnu::always_inline]] static void unpack(const int8_t* from, int64_t packed_rows, int8_t* to) {
    for (int64_t i = 0; i < packed_rows; ++i, from += kRowBytes, to += Block::kQuads * kRowBytes) {
      for (int64_t j = 0; j < kRowBytes; j += 4 * kWidth) {
        UintVec quads[Block::kQuads];
        Block::unpack(load_quads(from + j), quads);
        for (int q = 0; q < Block::kQuads; ++q) __builtin_memcpy(to + q * kRowBytes + j, &quads[q], sizeof(quads[q]));
      }
    }
  }

  // The block that begins at k: its dots times both scales, those of the first panel at `scales`.
  template <int kRowTiles, int kPanels, int kSums>
  void add_scaled(int64_t row, int64_t num_rows, int64_t k, const int8_t* scales,
                  const int32_t (&dots)[kSums][kTileSize][kWidth], float (&sums)[kSums][kTileSize][kWidth]) const {
    for (int pair = 0; pair < kSums / 2; ++pair) {
      const int panel = kPanels == 2 ? pair : 0, tile = kRowTiles == 2 ? pair : 0;
      const auto* of_columns = reinterpret_cast<const typename Block::Scale*>(scales + panel * panel_bytes_);
      const Vec first = load(of_columns), second = load(of_columns + kWidth);
      const int64_t end = min(num_rows - tile * kTileSize, kTileSize);
      for (int64_t r = 0; r < end; ++r) {
        const int64_t x_row = row + tile * kTileSize + r;
        const Vec of_row = splat(x_.scale(x_row, k));
        const int32_t begin = Block::kOffset == 0 ? 0 : x_.template begin<Block::kBlock>(x_row, k);
        add_scaled(dots[2 * pair][r], begin, of_row * first, sums[2 * pair][r]);
        add_scaled(dots[2 * pair + 1][r], begin, of_row * second, sums[2 * pair + 1][r]);
      }
    }
  }

  [[gnu::always_inline]] static void add_scaled(const int32_t* dots, int32_t begin, Vec scale, float* sums) {
    IntVec integers;
    __builtin_memcpy(&integers, dots, sizeof(integers));
    if constexpr (Block::kOffset != 0) integers += begin;
    store(sums, fma(__builtin_convertvector(integers, Vec), scale, load(sums)));
  }

  const PackedWeight& weight_;
  Int8Rows x_;
  const ProductOutput& out_;
  int64_t num_rows_;
  int64_t panel_bytes_;
};

}  // namespace hocket::cpu::HOCKET_ISA

#endif
