// The token ids of a simulated workload, which knows lengths and shared prefixes but no text.
//
// A token is a function of a stream and of its position in the request. Two requests share a prefix exactly as far as
// their positions are covered by the same streams: a stream may stand for one request, for a session (then a follow-up
// repeats the prompts and answers before it), or for one block of a trace whose blocks have ids.
// schedcore/simulation/workloads/token_ids.py is the same function in numpy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hocket {

// 31 bits of the SplitMix64 sequence of `stream`: never negative. Different streams give different tokens at one
// position but for one case in 2^31, which no block of several tokens can meet by chance.
inline int32_t synthetic_token(uint64_t stream, uint64_t position) {
  uint64_t z = stream + (position + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<int32_t>((z ^ (z >> 31)) >> 33);
}

// Prompts as runs of streams. Run k of request r, offsets[r] <= k < offsets[r + 1], covers the positions from the end
// of the run before it, or 0, up to ends[k]; the last run's end is the prompt's length.
struct SyntheticPrompts {
  std::span<const int64_t> offsets;         // [num_requests + 1]
  std::span<const uint64_t> streams;        // [num_runs]
  std::span<const int32_t> ends;            // [num_runs], ascending within a request
  std::span<const uint64_t> continuations;  // [num_requests], the stream of the answer

  int32_t num_tokens(size_t request) const { return ends[offsets[request + 1] - 1]; }

  // Replaces `tokens` by the prompt.
  void write(size_t request, std::vector<int32_t>* tokens) const {
    tokens->clear();
    for (int64_t run = offsets[request]; run < offsets[request + 1]; ++run) {
      const auto end = static_cast<size_t>(ends[run]);
      while (tokens->size() < end) tokens->push_back(synthetic_token(streams[run], tokens->size()));
    }
  }
};

}  // namespace hocket
