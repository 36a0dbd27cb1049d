#include "speculation/repetition_index.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace hocket {
namespace {

constexpr size_t kLeastBuckets = 256;

// How many of the tokens that end at a and at b are equal. REQUIRES: 0 <= a < b.
int32_t agreement(const int32_t* tokens, int32_t a, int32_t b) {
  const int32_t most = std::min(a + 1, RepetitionIndex::kMostCompared);
  int32_t n = 0;
  while (n < most && tokens[a - n] == tokens[b - n]) ++n;
  return n;
}

}  // namespace

RepetitionIndex::Match RepetitionIndex::find(std::span<const int32_t> tokens) {
  read(tokens);
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  if (end < 2 || std::ssize(earlier_) < end) return {};
  Match best;
  int32_t place = latest_[bucket(&tokens[end])];
  for (int32_t i = 0; i < kMostCandidates && place != kNone; ++i, place = earlier_[place]) {
    const int32_t length = agreement(tokens.data(), place, end);
    if (length >= 2 && length > best.length) best = {place + 1, length};
    if (best.length == kMostCompared) break;
  }
  return best;
}

// By the pair that ends at `last` (Fibonacci hashing).
uint32_t RepetitionIndex::bucket(const int32_t* last) const {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(last[-1])} << 32 | static_cast<uint32_t>(last[0]);
  return static_cast<uint32_t>((pair * 0x9E3779B97F4A7C15) >> (64 - std::countr_zero(latest_.size())));
}

// All but the last token: the pair that it ends is the one that is searched for.
void RepetitionIndex::read(std::span<const int32_t> tokens) {
  const size_t end = std::min(tokens.size() - 1, earlier_.size() + kMostAtOnce);
  if (end > latest_.size() || latest_.empty()) {
    latest_.resize(std::max(kLeastBuckets, std::bit_ceil(end)));
    rehash(tokens.data());
  }
  while (earlier_.size() < end) {
    const auto position = static_cast<int32_t>(earlier_.size());
    earlier_.push_back(kNone);
    if (position == 0) continue;
    int32_t& latest = latest_[bucket(&tokens[position])];
    earlier_.back() = std::exchange(latest, position);
  }
}

void RepetitionIndex::rehash(const int32_t* tokens) {
  std::ranges::fill(latest_, kNone);
  for (int32_t i = 1; i < std::ssize(earlier_); ++i) {
    earlier_[i] = std::exchange(latest_[bucket(tokens + i)], i);
  }
}

}  // namespace hocket
