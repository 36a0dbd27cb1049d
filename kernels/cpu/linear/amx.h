// Tiles of AMX: eight registers of up to 16 rows of 64 bytes, and products of them. Written as assembly, since CPUs
// with and without them share a build.
//
// A product adds to a tile of 16 columns of 32-bit sums: row m of A, 64 bytes of one row of x, times the rows of B,
// each of them 16 columns of 4 bytes of k, as panels have them (linear.h). What it gives a row does not depend on the
// rows beside it. Of bfloat16, whose subnormal numbers count as zero, the even and the odd elements of k make a sum
// each, and both are added to the tile's.
#pragma once

#include "linear/uses_amx.h"
#include "simd.h"

#ifdef __AVX512BF16__

namespace hocket::cpu::HOCKET_ISA {

constexpr int64_t kTileBytes = 64;  // of a row
constexpr int64_t kTileSize = 16;   // rows; columns of 32 bits

// The tiles of this thread while it lives. 4 and 5 are rows of x; 6 and 7 the two halves of a panel; 0 and 1 sums of 4
// by 6 and 7; 2 and 3 those of 5, or where there are at most 16 rows, of 4 by a second panel.
class Tiles {
 public:
  // k_bytes: of k in one step, a multiple of 4.
  explicit Tiles(int64_t k_bytes = kTileBytes) : k_bytes_(k_bytes) {}

  // Before the first product, and where the number of rows changes: the tiles are empty then. Else it costs nothing.
  // REQUIRES: 0 < num_rows <= 2 * kTileSize.
  void take_rows(int64_t num_rows) {
    if (num_rows == num_rows_) return;
    num_rows_ = num_rows;
    const auto first = static_cast<uint8_t>(min(num_rows, kTileSize));
    const auto second = static_cast<uint8_t>(num_rows > kTileSize ? num_rows - kTileSize : num_rows);
    const auto of_panel = static_cast<uint8_t>(k_bytes_ / 4);
    const uint8_t rows[8] = {first, first, second, second, first, second, of_panel, of_panel};
    Config config;
    for (int i = 0; i < 8; ++i) {
      config.rows[i] = rows[i];
      config.bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? k_bytes_ : kTileBytes);
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t reserved[15] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Config) == 64);

  int64_t k_bytes_;
  int64_t num_rows_ = 0;
};

template <int kTile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// Rows `stride` bytes apart.
template <int kTile>
inline void load_tile(const void* p, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(p), "r"(stride) : "memory");
}

template <int kTile>
inline void store_tile(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(p), "r"(stride) : "memory");
}

// What tiles hold, and the product of two of them.
struct Bf16Tiles {
  static constexpr int64_t kElementBytes = 2;
  template <int kSum, int kA, int kB>
  static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};

struct Int8Tiles {
  static constexpr int64_t kElementBytes = 1;
  template <int kSum, int kA, int kB>
  static void multiply_add() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};

// One step along k: kRowTiles tiles of rows by kPanels panels `panel_size` bytes apart, whose rows are `stride` bytes
// long. One of both is 1.
template <class Kind, int kRowTiles, int kPanels>
[[gnu::always_inline]] inline void add_step(const void* x, int64_t x_stride, const void* panel, int64_t stride,
                                            int64_t panel_size) {
  static_assert(kRowTiles == 1 || kPanels == 1);
  const auto* bytes = static_cast<const int8_t*>(panel);
  load_tile<4>(x, x_stride);
  load_tile<6>(bytes, stride);
  load_tile<7>(bytes + kTileBytes, stride);
  Kind::template multiply_add<0, 4, 6>();
  Kind::template multiply_add<1, 4, 7>();
  if constexpr (kRowTiles == 2) {
    load_tile<5>(static_cast<const int8_t*>(x) + kTileSize * x_stride, x_stride);
    Kind::template multiply_add<2, 5, 6>();
    Kind::template multiply_add<3, 5, 7>();
  } else if constexpr (kPanels == 2) {
    load_tile<6>(bytes + panel_size, stride);
    load_tile<7>(bytes + panel_size + kTileBytes, stride);
    Kind::template multiply_add<2, 4, 6>();
    Kind::template multiply_add<3, 4, 7>();
  }
}

template <int kCount>
inline void zero_tiles() {
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (kCount == 4) {
    zero_tile<2>();
    zero_tile<3>();
  }
}

// Sums as they are stored: [tile][row][column], float or int32.
template <int kCount>
inline void store_tiles(void* to) {
  auto* bytes = static_cast<int8_t*>(to);
  constexpr int64_t kSize = kTileSize * kTileBytes;
  store_tile<0>(bytes, kTileBytes);
  store_tile<1>(bytes + kSize, kTileBytes);
  if constexpr (kCount == 4) {
    store_tile<2>(bytes + 2 * kSize, kTileBytes);
    store_tile<3>(bytes + 3 * kSize, kTileBytes);
  }
}

// What store_tiles() stored.
template <int kCount>
inline void load_tiles(const void* from) {
  const auto* bytes = static_cast<const int8_t*>(from);
  constexpr int64_t kSize = kTileSize * kTileBytes;
  load_tile<0>(bytes, kTileBytes);
  load_tile<1>(bytes + kSize, kTileBytes);
  if constexpr (kCount == 4) {
    load_tile<2>(bytes + 2 * kSize, kTileBytes);
    load_tile<3>(bytes + 3 * kSize, kTileBytes);
  }
}

}  // namespace hocket::cpu::HOCKET_ISA

#endif
