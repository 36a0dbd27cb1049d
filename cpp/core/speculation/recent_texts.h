// What was said lately, and how what is said now went on there: the end of one text, found in others.
//
// Texts are kept in two halves. When the younger one is full, the older one is forgotten and takes its place: no text
// is ever taken out of an index. Between two texts stands a token that matches nothing.
//
// Thread safety: none. Allocation: when a text is added, and as RepetitionIndex where texts are read.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "speculation/repetition_index.h"

namespace hocket {

class RecentTexts {
 public:
  static constexpr int32_t kMostTokens = 1 << 14;  // of a half; a longer text loses its beginning
  static constexpr int32_t kMostAtOnce = 512;      // tokens that a search reads of what was added
  static constexpr int32_t kKeyLength = 3;         // two tokens in a row have too many places

  struct Match {
    std::span<const int32_t> next;  // what came there, to the end of that text, not empty; until the next add()
    int32_t length = 0;             // of the match, at least kKeyLength; 0: none was found
  };

  // No token is negative.
  void add(std::span<const int32_t> text);

  // The longest match of the text's end, the younger half's of equals, then the latest. None where a text ended there.
  Match find(std::span<const int32_t> text);

  // That are kept.
  int64_t num_tokens() const { return std::ssize(halves_[0].tokens) + std::ssize(halves_[1].tokens); }

 private:
  static constexpr int32_t kEnd = -1;

  struct Half {
    std::vector<int32_t> tokens;
    RepetitionIndex index = RepetitionIndex(kKeyLength);
  };

  Match find(const Half& half, std::span<const int32_t> text) const;

  std::array<Half, 2> halves_;  // the younger one first
};

}  // namespace hocket
