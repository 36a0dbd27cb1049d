#include "offline/offline_queue.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "memory/block_hashes.h"

namespace hocket {

OfflineQueue::OfflineQueue(const SchedulerConfig& config, const RequestTable* requests, MemoryView* memory)
    : block_size_(config.block_size), requests_(*requests), memory_(*memory) {
  counts_.reserve(config.max_blocks_per_seq());
}

void OfflineQueue::add(Slot slot) {
  if (static_cast<size_t>(slot) >= paths_.size()) paths_.resize(slot + 1);
  paths_[slot].clear();
  const uint64_t seed = std::hash<std::string_view>{}(requests_.cache_salt[slot]);
  // The last token is never taken from the cache.
  const auto prompt = requests_.known_tokens(slot).first(requests_.num_prompt_tokens[slot] - 1);
  append_block_hashes(prompt, block_size_, seed, &paths_[slot]);
}

void OfflineQueue::insert(Slot slot) {
  const int32_t num_cached = num_cached_blocks(static_cast<uint64_t>(slot), paths_[slot]);
  pool_.insert(static_cast<uint64_t>(slot), requests_.num_prompt_tokens[slot], paths_[slot], num_cached);
  count_pending(slot, 1);
}

void OfflineQueue::take(Slot slot) {
  pool_.take(static_cast<uint64_t>(slot));
  count_pending(slot, -1);
}

void OfflineQueue::count_pending(Slot slot, int32_t delta) {
  const auto prompt = requests_.known_tokens(slot).first(paths_[slot].size() * block_size_);
  memory_.add_pending(requests_.cache_salt[slot], prompt, delta);
}

std::span<const uint32_t> OfflineQueue::pending_counts(Slot slot, int32_t begin, int32_t end) {
  const auto& path = paths_[slot];
  if (pool_.size() == 0 || begin >= std::ssize(path)) return {};
  const auto num_known = std::min(path.size(), static_cast<size_t>(end));
  counts_.assign(end, 0);
  pool_.reference_counts(std::span(path).first(num_known), std::span(counts_).first(num_known));
  return std::span<const uint32_t>(counts_).subspan(begin);
}

void OfflineQueue::note_cached(Slot slot, int32_t begin, int32_t end) {
  const auto& path = paths_[slot];
  if (pool_.size() == 0 || begin >= std::ssize(path)) return;
  pool_.note_cached(path, std::min(end, static_cast<int32_t>(path.size())));
}

int32_t OfflineQueue::num_cached_blocks(uint64_t slot, std::span<const uint64_t> path) const {
  const auto index = static_cast<Slot>(slot);
  const auto prompt = requests_.known_tokens(index).first(path.size() * block_size_);
  return memory_.num_cached_blocks(requests_.cache_salt[index], prompt);
}

bool OfflineQueue::is_being_computed(Slot slot, int32_t num_cached_tokens, Slot leader) const {
  const auto next = static_cast<size_t>(num_cached_tokens / block_size_);
  const auto& mine = paths_[slot];
  const auto& theirs = paths_[leader];
  return next < mine.size() && next < theirs.size() && mine[next] == theirs[next];
}

int32_t OfflineQueue::num_related(Slot slot) const {
  if (paths_[slot].empty()) return 0;
  uint32_t count = 0;
  pool_.reference_counts(std::span(paths_[slot]).first(1), {&count, 1});
  return static_cast<int32_t>(count);
}

int32_t OfflineQueue::num_cached_tokens(Slot slot) const {
  return num_cached_blocks(static_cast<uint64_t>(slot), paths_[slot]) * block_size_;
}

void OfflineQueue::candidates(int32_t num_tokens, int32_t max_slots, std::vector<Slot>* slots) const {
  picks_.clear();
  const auto collect = [&](std::optional<int32_t> bucket) {
    const auto room = max_slots - static_cast<int32_t>(picks_.size());
    if (bucket && room > 0) pool_.collect(*bucket, room, *this, &picks_);
  };
  const std::optional<int32_t> cached = pool_.best_cached_bucket();
  const std::optional<int32_t> nearest = pool_.nearest_bucket(num_tokens);
  collect(cached);
  if (nearest != cached) collect(nearest);
  for (int32_t bucket = 0; bucket < OfflinePool::kNumBuckets; ++bucket) {
    if (bucket != cached && bucket != nearest && pool_.size(bucket) > 0) collect(bucket);
  }
  for (const uint64_t pick : picks_) slots->push_back(static_cast<Slot>(pick));
}

}  // namespace hocket
