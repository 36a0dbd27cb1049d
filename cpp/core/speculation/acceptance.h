// How often what a text said before is what comes next, by the length of the match. Learnt of every token that is
// sampled, whether it was guessed or not: to watch costs nothing, so that nobody need guess to know.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace hocket {

class Acceptance {
 public:
  static constexpr int kNumLengths = 6;

  // Chances that the next token is right, by length_index().
  using Rates = std::array<float, kNumLengths>;

  // Lengths of 2, 3, 4, 5 to 8, 9 to 16, more. REQUIRES: length >= 2.
  static int length_index(int32_t length) {
    if (length <= 4) return length - 2;
    return std::min(kNumLengths - 1, static_cast<int>(std::bit_width(static_cast<uint32_t>(length - 1))));
  }

  void observe(int32_t length, bool is_right, float memory) {
    Counts& of = counts_[length_index(length)];
    of.num_right += is_right ? 1.0F : 0.0F;
    of.num += 1.0F;
    if (of.num > memory) of = {of.num_right / 2, of.num / 2};
  }

  // As far as nothing has been seen, those that were expected.
  Rates rates(const Rates& expected) const {
    Rates found;
    for (int i = 0; i < kNumLengths; ++i) {
      found[i] = (counts_[i].num_right + kWeight * expected[i]) / (counts_[i].num + kWeight);
    }
    return found;
  }

 private:
  static constexpr float kWeight = 4.0F;  // of what was expected, in observations

  struct Counts {
    float num_right = 0.0F;
    float num = 0.0F;
  };
  std::array<Counts, kNumLengths> counts_;
};

}  // namespace hocket
