// Decisions out of a fuzzer's bytes. Where they have run out, each is the lowest: any input is a whole story.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hocket::fuzz {

class ByteDecisions {
 public:
  // The bytes must outlive the object.
  ByteDecisions(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool is_empty() const { return at_ >= size_; }

  // Both included; REQUIRES: low <= high.
  int32_t between(int32_t low, int32_t high) {
    const auto range = static_cast<uint32_t>(high - low) + 1;
    uint32_t value = next();
    if (range > 256) value = value << 8 | next();
    return low + static_cast<int32_t>(value % range);
  }

  bool chance(int32_t percent) { return between(1, 100) <= percent; }

 private:
  uint32_t next() { return at_ < size_ ? data_[at_++] : 0; }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

}  // namespace hocket::fuzz
