#include "offline/plan_features.h"

#include <algorithm>

namespace hocket {

BatchFeatures plan_features(const BatchPlan& plan) {
  int64_t num_decodes = 0, num_chunks = 0, chunk_tokens = 0;
  int64_t decode_context = 0, max_context = 0;
  int64_t chunk_pairs = 0, chunk_squares = 0, chunk_context = 0;
  for (int32_t s = 0; s < plan.num_seqs(); ++s) {
    const int64_t n = plan.query_start[s + 1] - plan.query_start[s];
    const int64_t length = plan.seq_lens[s];
    if (n == 1) {
      ++num_decodes;
      decode_context += length;
      max_context = std::max(max_context, length);
    } else {
      const int64_t context = length - n;
      ++num_chunks;
      chunk_tokens += n;
      chunk_pairs += length * length - context * context;
      chunk_squares += n * n;
      chunk_context += context;
    }
  }
  int64_t hidden_tokens = 0;
  for (size_t s = 0; s < plan.forms.hidden_tokens.size(); ++s) {
    const int64_t n = plan.forms.uncached_tokens[s];
    hidden_tokens += plan.forms.hidden_tokens[s];
    num_chunks += n > 0;
    chunk_tokens += n;
    chunk_pairs += n * n;
    chunk_squares += n * n;
  }
  for (const HostTransfer& transfer : plan.transfers) {
    const bool is_projected = !transfer.is_to_host && transfer.kind == CacheKind::kHidden;
    hidden_tokens += is_projected ? transfer.end_token - transfer.begin_token : 0;
  }
  BatchFeatures features;
  features.hidden_tokens = static_cast<double>(hidden_tokens);
  features.num_chunks = static_cast<double>(num_chunks);
  features.chunk_tokens = static_cast<double>(chunk_tokens);
  features.chunk_pairs = static_cast<double>(chunk_pairs);
  features.chunk_squares = static_cast<double>(chunk_squares);
  features.chunk_context = static_cast<double>(chunk_context);
  features.num_decodes = static_cast<double>(num_decodes);
  features.decode_context = static_cast<double>(decode_context);
  features.max_context = static_cast<double>(max_context);
  return features;
}

}  // namespace hocket
