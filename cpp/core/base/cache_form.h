// In which form a request's tokens are kept in device memory (Apt-Serve section 4.3, eLLM section 3.2).
#pragma once

#include <cstdint>

namespace hocket {

// What a block holds per layer group: K and V, or X, the input of the attention projections.
enum class CacheKind : uint8_t { kKv = 0, kHidden = 1 };
inline constexpr int kNumCacheKinds = 2;

struct CacheForm {
  CacheKind kind = CacheKind::kKv;
  int32_t num_uncached_blocks = 0;  // from the start; recomputed in every step that computes something of the request

  bool operator==(const CacheForm&) const = default;
};

}  // namespace hocket
