// In which form a request's tokens are kept in device memory (Apt-Serve section 4.3, eLLM section 3.2).
#pragma once

#include <cstdint>

namespace hocket {

// What a block holds per layer group: K and V; X, the input of the attention projections; or K and V in int8.
enum class CacheKind : uint8_t { kKv = 0, kHidden = 1, kInt8 = 2 };
inline constexpr int kNumCacheKinds = 3;

struct CacheForm {
  CacheKind kind = CacheKind::kKv;
  int32_t num_uncached_blocks = 0;  // from the start; recomputed in every step that computes something of the request

  bool operator==(const CacheForm&) const = default;
};

}  // namespace hocket
