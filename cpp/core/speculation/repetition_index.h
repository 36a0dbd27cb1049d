// Where a text has said before what it says now, or what another text says: earlier occurrences of an end.
//
// Hash chains, as LZ77 compressors keep them: a table of the last place of every key, two or three tokens in a row, and
// from every place the one before it. A search looks at the latest few places of the key that the text ends with and
// takes the one before which most tokens agree. 8 to 16 bytes per token; about 100 ns per token and per search.
//
// Thread safety: none. Allocation: as a vector's that grows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace hocket {

class RepetitionIndex {
 public:
  static constexpr int32_t kMostCandidates = 16;
  static constexpr int32_t kMostCompared = 32;   // tokens: no match counts as longer
  static constexpr int32_t kMostAtOnce = 4'096;  // tokens that a search reads, so that a long prompt delays no step

  // tokens[next - 1] and the `length` - 1 tokens before it are the text's last ones, too.
  struct Match {
    int32_t next = kNone;
    int32_t length = 0;  // at least that of a key

    bool is_found() const { return next != kNone; }
  };

  // key_length: 2 or 3 tokens; larger: fewer and better places.
  explicit RepetitionIndex(int32_t key_length = 2) : key_length_(key_length) {}

  // The longest match of the text's end, the latest of equals; none while the text has not been read to its end.
  // tokens: those of the last call, and what has been added.
  Match find(std::span<const int32_t> tokens);

  // Reads so many tokens more, as far as there are any. tokens: as for find().
  void read(std::span<const int32_t> tokens, int32_t most);
  // The longest match in `tokens`, as far as they have been read, of another text's end, the latest of equals. No token
  // of `text` is negative: what is negative in `tokens` matches nothing.
  Match find_end(std::span<const int32_t> text, std::span<const int32_t> tokens) const;

 private:
  uint32_t bucket(const int32_t* last) const;
  void rehash(const int32_t* tokens);

  int32_t key_length_;
  std::vector<int32_t> latest_;   // by bucket: the position of a key's last token, or kNone
  std::vector<int32_t> earlier_;  // by position: the one before it in its bucket
};

}  // namespace hocket
