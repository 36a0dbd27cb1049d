#include "speculation/repetition_index.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace hocket {
namespace {

constexpr size_t kLeastBuckets = 256;

// How many tokens up to a[end_a] and b[end_b] are equal.
int32_t agreement(const int32_t* a, int32_t end_a, const int32_t* b, int32_t end_b) {
  const int32_t most = std::min({end_a + 1, end_b + 1, RepetitionIndex::kMostCompared});
  int32_t n = 0;
  while (n < most && a[end_a - n] == b[end_b - n]) ++n;
  return n;
}

}  // namespace

// All but the last token are read: the key that it ends is the one that is searched for.
RepetitionIndex::Match RepetitionIndex::find(std::span<const int32_t> tokens) {
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  read(tokens.first(static_cast<size_t>(end)), kMostAtOnce);
  if (std::ssize(earlier_) < end) return {};
  return find_end(tokens, tokens);
}

void RepetitionIndex::read(std::span<const int32_t> tokens, int32_t most) {
  const size_t end = std::min(tokens.size(), earlier_.size() + static_cast<size_t>(most));
  if (end > latest_.size() || latest_.empty()) {
    latest_.resize(std::max(kLeastBuckets, std::bit_ceil(end)));
    rehash(tokens.data());
  }
  while (earlier_.size() < end) {
    const auto position = static_cast<int32_t>(earlier_.size());
    earlier_.push_back(kNone);
    if (position + 1 < key_length_) continue;
    int32_t& latest = latest_[bucket(&tokens[position])];
    earlier_.back() = std::exchange(latest, position);
  }
}

RepetitionIndex::Match RepetitionIndex::find_end(std::span<const int32_t> text, std::span<const int32_t> tokens) const {
  const auto end = static_cast<int32_t>(text.size()) - 1;
  if (end + 1 < key_length_ || latest_.empty()) return {};
  Match best;
  int32_t place = latest_[bucket(&text[end])];
  for (int32_t i = 0; i < kMostCandidates && place != kNone; ++i, place = earlier_[place]) {
    const int32_t length = agreement(tokens.data(), place, text.data(), end);
    if (length >= key_length_ && length > best.length) best = {place + 1, length};
    if (best.length == kMostCompared) break;
  }
  return best;
}

// By the key that ends at `last` (Fibonacci hashing).
uint32_t RepetitionIndex::bucket(const int32_t* last) const {
  uint64_t key = uint64_t{static_cast<uint32_t>(last[-1])} << 32 | static_cast<uint32_t>(last[0]);
  if (key_length_ == 3) key ^= uint64_t{static_cast<uint32_t>(last[-2])} * 0xC2B2AE3D27D4EB4F;
  return static_cast<uint32_t>((key * 0x9E3779B97F4A7C15) >> (64 - std::countr_zero(latest_.size())));
}

void RepetitionIndex::rehash(const int32_t* tokens) {
  std::ranges::fill(latest_, kNone);
  for (int32_t i = key_length_ - 1; i < std::ssize(earlier_); ++i) {
    earlier_[i] = std::exchange(latest_[bucket(tokens + i)], i);
  }
}

}  // namespace hocket
