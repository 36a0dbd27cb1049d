// What the indices of a step may be. Kernels trust them; this is the door. O(tokens) comparisons of integers, a
// microsecond where a step takes milliseconds. Not looked at: the units that block tables name, which the scheduling
// core hands out and its invariants vouch for.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace hocket {

struct StepBounds {
  int64_t vocab_size;
  int64_t max_positions;  // rows of the table of rotations
  int64_t max_tokens;     // of a sequence: what a row of the block tables has blocks for
  int64_t num_rows;       // of the block tables

  // Throws std::invalid_argument, in Python ValueError, for the first array that is wrong.
  void check(std::span<const int32_t> token_ids, std::span<const int32_t> positions, std::span<const int32_t> token_row,
             std::span<const int32_t> query_start, std::span<const int32_t> seq_lens, std::span<const int32_t> rows,
             std::span<const int32_t> sample_tokens) const {
    const size_t num_tokens = token_ids.size(), num_seqs = rows.size();
    require(positions.size() == num_tokens && token_row.size() == num_tokens, "arrays of tokens differ in length");
    require(seq_lens.size() == num_seqs && query_start.size() == num_seqs + 1, "arrays of sequences differ in length");
    within("token_ids", token_ids, vocab_size);
    within("positions", positions, max_positions < max_tokens ? max_positions : max_tokens);
    within("token_row", token_row, num_rows);
    within("rows", rows, num_rows);
    within("seq_lens", seq_lens, max_tokens + 1);
    within("sample_tokens", sample_tokens, static_cast<int64_t>(num_tokens));
    require(query_start[0] == 0 && query_start[num_seqs] == static_cast<int64_t>(num_tokens),
            "query_start must go from 0 to the number of tokens");
    for (size_t s = 0; s < num_seqs; ++s) {
      const int64_t size = int64_t{query_start[s + 1]} - query_start[s];
      require(size >= 0 && size <= seq_lens[s], "query_start must ascend, by no more than seq_lens");
    }
  }

  // Each of [0, limit).
  static void within(const char* name, std::span<const int32_t> values, int64_t limit) {
    uint32_t largest = 0;  // a negative number is larger than any
    for (const int32_t value : values) {
      const auto one = static_cast<uint32_t>(value);
      largest = one > largest ? one : largest;
    }
    if (!values.empty() && largest >= limit) {
      throw std::invalid_argument(std::string(name) + " must be in [0, " + std::to_string(limit) + ")");
    }
  }

 private:
  static void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
  }
};

}  // namespace hocket
