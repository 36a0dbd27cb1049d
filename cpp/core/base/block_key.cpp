// BLAKE2s as RFC 7693 has it: ten rounds of eight mixings over sixteen words, in blocks of 64 bytes.

#include "base/block_key.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace hocket {
namespace {

static_assert(std::endian::native == std::endian::little, "digests are read as little-endian words");

constexpr size_t kBlockBytes = 64;
constexpr uint32_t kDigestBytes = 16;
constexpr std::array<uint32_t, 8> kInitial = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                              0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
constexpr uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

using State = std::array<uint32_t, 8>;

void mix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t x, uint32_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 12);
  a += b + y;
  d = std::rotr(d ^ a, 8);
  c += d;
  b = std::rotr(b ^ c, 7);
}

void compress(State* state, const uint8_t* block, uint64_t num_bytes, bool is_last) {
  std::array<uint32_t, 16> m;
  std::memcpy(m.data(), block, kBlockBytes);
  std::array<uint32_t, 16> v;
  std::memcpy(v.data(), state->data(), sizeof(State));
  std::memcpy(v.data() + 8, kInitial.data(), sizeof(State));
  v[12] ^= static_cast<uint32_t>(num_bytes);
  v[13] ^= static_cast<uint32_t>(num_bytes >> 32);
  if (is_last) v[14] = ~v[14];
  for (const auto& s : kOrder) {
    mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
    mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
    mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
    mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
    mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
    mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
    mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
    mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
  }
  for (size_t i = 0; i < 8; ++i) (*state)[i] ^= v[i] ^ v[i + 8];
}

// Takes a message in parts.
class Blake2s {
 public:
  Blake2s() { state_[0] ^= 0x01010000 ^ kDigestBytes; }

  void update(const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    while (size > 0) {
      if (num_buffered_ == kBlockBytes) {
        compress(&state_, buffer_.data(), num_bytes_, false);
        num_buffered_ = 0;
      }
      const size_t taken = std::min(size, kBlockBytes - num_buffered_);
      std::memcpy(buffer_.data() + num_buffered_, bytes, taken);
      num_buffered_ += taken;
      num_bytes_ += taken;
      bytes += taken;
      size -= taken;
    }
  }

  BlockKey finish() {
    std::memset(buffer_.data() + num_buffered_, 0, kBlockBytes - num_buffered_);
    compress(&state_, buffer_.data(), num_bytes_, true);
    const auto word = [&](size_t i) { return state_[i] | uint64_t{state_[i + 1]} << 32; };
    return {word(0), word(2)};
  }

 private:
  State state_ = kInitial;
  std::array<uint8_t, kBlockBytes> buffer_ = {};
  size_t num_buffered_ = 0;
  uint64_t num_bytes_ = 0;
};

}  // namespace

BlockKey blake2s_128(std::span<const uint8_t> message) {
  Blake2s hash;
  hash.update(message.data(), message.size());
  return hash.finish();
}

// The fingerprint's length separates it from the salt.
BlockKey root_key(std::string_view fingerprint, std::string_view salt) {
  Blake2s hash;
  const uint64_t length = fingerprint.size();
  hash.update(&length, sizeof length);
  hash.update(fingerprint.data(), fingerprint.size());
  hash.update(salt.data(), salt.size());
  return hash.finish();
}

BlockKey next_key(const BlockKey& parent, std::span<const int32_t> tokens) {
  Blake2s hash;
  hash.update(&parent, sizeof parent);
  hash.update(tokens.data(), tokens.size_bytes());
  return hash.finish();
}

void append_block_keys(const BlockKey& root, std::span<const int32_t> tokens, int32_t block_size,
                       std::vector<BlockKey>* keys) {
  const auto size = static_cast<size_t>(block_size);
  BlockKey parent = keys->empty() ? root : keys->back();
  for (size_t begin = keys->size() * size; begin + size <= tokens.size(); begin += size) {
    keys->push_back(parent = next_key(parent, tokens.subspan(begin, size)));
  }
}

}  // namespace hocket
