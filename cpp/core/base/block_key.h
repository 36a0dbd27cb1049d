// Names of blocks across tiers and restarts: a 128-bit BLAKE2s digest (RFC 7693) of everything that a block's vectors
// depend on: the cache's fingerprint (model, dtype, layout), the salt, and all tokens up to the block's end.
//
// The device's radix tree compares tokens and needs no names. Host and disk are found by name alone, so the digest is a
// cryptographic one: nobody can make a prompt whose blocks are taken for another's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hocket {

struct BlockKey {
  uint64_t low = 0;
  uint64_t high = 0;

  bool operator==(const BlockKey&) const = default;
};

// The key of no tokens, where every chain begins.
BlockKey root_key(std::string_view fingerprint, std::string_view salt);

// The key of the block that follows the one named `parent`.
BlockKey next_key(const BlockKey& parent, std::span<const int32_t> tokens);

// Appends the keys of the complete blocks of `tokens` that *keys does not have yet. REQUIRES: *keys are those of the
// first blocks of `tokens` under `root`.
void append_block_keys(const BlockKey& root, std::span<const int32_t> tokens, int32_t block_size,
                       std::vector<BlockKey>* keys);

// BLAKE2s with a 16-byte digest and no key.
BlockKey blake2s_128(std::span<const uint8_t> message);

}  // namespace hocket
