// One 64-bit hash per complete block of a prompt, each covering all tokens up to the block's end and a seed (the cache
// salt's hash): equal hashes at equal places mean equal prefixes, up to collisions. For decisions, never for identity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hocket {

// Appends floor(tokens.size() / block_size) hashes. REQUIRES: block_size >= 1.
inline void append_block_hashes(std::span<const int32_t> tokens, int32_t block_size, uint64_t seed,
                                std::vector<uint64_t>* hashes) {
  const auto size = static_cast<size_t>(block_size);
  uint64_t state = seed;
  for (size_t begin = 0; begin + size <= tokens.size(); begin += size) {
    for (const int32_t token : tokens.subspan(begin, size)) {
      state = (state ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15ULL;
      state ^= state >> 29;
    }
    hashes->push_back(state);
  }
}

}  // namespace hocket
