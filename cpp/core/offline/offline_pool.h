// The offline requests that wait, and which of them to take next (Echo sections 4.1 and 6).
//
// Buckets by prompt length in powers of the square root of two, so that a batch can be filled with prompts of a size;
// each bucket is a radix tree of its prompts (pending_tree.h). From a bucket the next pick is the deepest match with
// what is cached; of equals, and if nothing is cached, the closest relative of what was just taken.
//
// The pool also knows how many pending prompts will use a block: the reference count of Echo's eviction. A cache that
// keeps counts per block asks reference_counts() when it gets new blocks, and adds or subtracts one along a path that
// enters or leaves the pool.
//
// Cost: O(depth) per insert, removal and pick, where depth is the number of branchings on the path; reference_counts
// is linear in the path; collect() in the picks and the depth. All but next() and collect() touch every bucket that is
// not empty.
// Thread safety: none. Allocation: only while growing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "offline/pending_tree.h"

namespace hocket {

class OfflinePool {
 public:
  using Path = PendingTree::Path;
  static constexpr int32_t kNumBuckets = 62;  // prompts of up to 2^31 - 1 tokens

  // floor(2 log2(tokens)), exactly. REQUIRES: num_tokens >= 1.
  static int32_t bucket_of(int32_t num_tokens);

  // False if the id is in the pool already. num_cached: leading blocks of the path that are in the cache.
  // REQUIRES: num_prompt_tokens >= 1.
  bool insert(uint64_t request_id, int32_t num_prompt_tokens, Path path, int32_t num_cached);
  // False if the id is not in the pool.
  bool remove(uint64_t request_id);
  // remove(), and what follows is chosen to be related to it. False if the id is not in the pool.
  bool take(uint64_t request_id);

  // The bucket's next pick; stays in the pool. Nothing if the bucket is empty.
  // REQUIRES: 0 <= bucket < kNumBuckets.
  std::optional<uint64_t> next(int32_t bucket, const CachedPrefixQuery& cache);
  // Appends up to max_requests of the bucket to *out, in an order in which next() and take() could give them in turn:
  // those cached deepest, each with its closest relatives, then the oldest with theirs. All stay in the pool.
  // REQUIRES: 0 <= bucket < kNumBuckets.
  void collect(int32_t bucket, int32_t max_requests, const CachedPrefixQuery& cache, std::vector<uint64_t>* out);
  // The bucket that is not empty and closest to prompts of this length, of two the one with shorter prompts; or whose
  // prompts are cached deepest. Nothing if the pool is empty.
  std::optional<int32_t> nearest_bucket(int32_t num_tokens) const;
  std::optional<int32_t> best_cached_bucket() const;

  // The first num_blocks of the path are in the cache now. To be told of every prompt that was computed; not told, the
  // pool overlooks that match. Eviction need not be told.
  void note_cached(Path path, int32_t num_blocks);

  // counts[i] = pending prompts that begin with path[0..i]. REQUIRES: counts as long as the path.
  void reference_counts(Path path, std::span<uint32_t> counts) const;

  int32_t size() const { return static_cast<int32_t>(places_.size()); }
  int32_t size(int32_t bucket) const { return buckets_[bucket].size(); }

  // Throws CoreError on the first broken invariant. O(blocks).
  void check_invariants() const;

 private:
  struct Place {
    int32_t bucket;
    PendingTree::EntryId entry;
  };

  std::array<PendingTree, kNumBuckets> buckets_;
  std::unordered_map<uint64_t, Place> places_;
  std::vector<uint64_t> last_taken_;         // path
  std::vector<PendingTree::EntryId> picks_;  // of collect()
};

}  // namespace hocket
