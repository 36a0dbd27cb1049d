// Copies by single warps: each takes a piece of a row and has all of it in flight at once, 16 bytes a load.
#pragma once

#include "launch.cuh"
#include "vector.cuh"

namespace hocket::cuda {

constexpr int kCopyLanes = 32;
constexpr int kCopyWarps = 8;    // of a block, each with a piece of its own
constexpr int kCopyVectors = 4;  // of a lane: 2 KiB of a warp; what a memory's latency needs is then a matter of warps

// Elements of a piece.
template <int kVec>
constexpr int kPiece = kCopyLanes * kCopyVectors * kVec;

// Copies elements [first, first + kPiece) of a row of `size`, as far as they are there. All but the last are whole.
template <int kVec, class T>
__device__ void copy_piece(const T* from, T* to, int first, int size) {
  const int begin = first + static_cast<int>(threadIdx.x) % kCopyLanes * kVec;
  Vector<T, kVec> held[kCopyVectors];
#pragma unroll
  for (int i = 0; i < kCopyVectors; ++i) {
    const int at = begin + i * kCopyLanes * kVec;
    if (at < size) held[i] = load_vector<kVec>(from + at);
  }
#pragma unroll
  for (int i = 0; i < kCopyVectors; ++i) {
    const int at = begin + i * kCopyLanes * kVec;
    if (at < size) store_vector(to + at, held[i]);
  }
}

// Which piece of which row this warp copies; rows beyond the last belong to nobody.
struct CopyPlace {
  int row;
  int first;  // element
};

__device__ inline CopyPlace copy_place(int pieces, int piece_size) {
  const int warp = static_cast<int>(blockIdx.x) * kCopyWarps + static_cast<int>(threadIdx.x) / kCopyLanes;
  return {warp / pieces, warp % pieces * piece_size};
}

}  // namespace hocket::cuda
