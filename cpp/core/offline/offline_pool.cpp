#include "offline/offline_pool.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace hocket {

int32_t OfflinePool::bucket_of(int32_t num_tokens) {
  const auto tokens = static_cast<uint64_t>(num_tokens);
  const int32_t log2 = std::bit_width(tokens) - 1;
  const bool is_upper_half = tokens * tokens >= uint64_t{1} << (2 * log2 + 1);
  return 2 * log2 + (is_upper_half ? 1 : 0);
}

bool OfflinePool::insert(uint64_t request_id, int32_t num_prompt_tokens, Path path, int32_t num_cached) {
  const auto [place, is_new] = places_.try_emplace(request_id);
  if (!is_new) return false;
  const int32_t bucket = bucket_of(num_prompt_tokens);
  place->second = {bucket, buckets_[bucket].insert(request_id, path, num_cached)};
  return true;
}

bool OfflinePool::remove(uint64_t request_id) {
  const auto place = places_.find(request_id);
  if (place == places_.end()) return false;
  buckets_[place->second.bucket].remove(place->second.entry);
  places_.erase(place);
  return true;
}

bool OfflinePool::take(uint64_t request_id) {
  const auto place = places_.find(request_id);
  if (place == places_.end()) return false;
  const Path path = buckets_[place->second.bucket].path(place->second.entry);
  last_taken_.assign(path.begin(), path.end());
  return remove(request_id);
}

std::optional<uint64_t> OfflinePool::next(int32_t bucket, const CachedPrefixQuery& cache) {
  const PendingTree::EntryId entry = buckets_[bucket].next(cache, last_taken_);
  if (entry == kNone) return std::nullopt;
  return buckets_[bucket].request_id(entry);
}

void OfflinePool::collect(int32_t bucket, int32_t max_requests, const CachedPrefixQuery& cache,
                          std::vector<uint64_t>* out) {
  picks_.clear();
  buckets_[bucket].collect(max_requests, cache, last_taken_, &picks_);
  for (const PendingTree::EntryId entry : picks_) out->push_back(buckets_[bucket].request_id(entry));
}

std::optional<int32_t> OfflinePool::nearest_bucket(int32_t num_tokens) const {
  const int32_t wanted = bucket_of(num_tokens);
  for (int32_t distance = 0; distance < kNumBuckets; ++distance) {
    for (const int32_t bucket : {wanted - distance, wanted + distance}) {
      if (bucket >= 0 && bucket < kNumBuckets && buckets_[bucket].size() > 0) return bucket;
    }
  }
  return std::nullopt;
}

std::optional<int32_t> OfflinePool::best_cached_bucket() const {
  std::optional<int32_t> best;
  for (int32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    if (buckets_[bucket].size() == 0) continue;
    if (!best || buckets_[bucket].deepest_hint() > buckets_[*best].deepest_hint()) best = bucket;
  }
  return best;
}

void OfflinePool::note_cached(Path path, int32_t num_blocks) {
  for (PendingTree& bucket : buckets_) {
    if (bucket.size() > 0) bucket.note_cached(path, num_blocks);
  }
}

void OfflinePool::reference_counts(Path path, std::span<uint32_t> counts) const {
  std::fill(counts.begin(), counts.end(), 0);
  for (const PendingTree& bucket : buckets_) bucket.add_reference_counts(path, counts);
}

void OfflinePool::check_invariants() const {
  size_t num_entries = 0;
  for (const PendingTree& bucket : buckets_) {
    bucket.check_invariants();
    num_entries += static_cast<size_t>(bucket.size());
  }
  HOCKET_CHECK(num_entries == places_.size(), "every pending request has one place");
  for (const auto& [id, place] : places_) {
    HOCKET_CHECK(buckets_[place.bucket].request_id(place.entry) == id, "a place holds its request");
  }
}

}  // namespace hocket
