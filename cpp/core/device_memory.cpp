#include "device_memory.h"

#include <algorithm>

#include "check.h"

namespace hocket {

DeviceMemory::DeviceMemory(const SchedulerConfig& config)
    : block_size_(config.block_size),
      enable_prefix_caching_(config.enable_prefix_caching),
      pool_(config.num_units, config.units_per_block()),
      cache_(&pool_, config.block_size),
      tables_(config.max_num_seqs, config.max_blocks_per_seq()),
      node_(config.max_num_seqs, kNone),
      num_indexed_(config.max_num_seqs, 0),
      num_promised_(config.max_num_seqs, 0),
      capacity_(config.max_num_seqs, 0),
      next_index_at_(config.max_num_seqs, kNever) {
  open_blocks_.reserve(config.max_blocks_per_seq());
}

int32_t DeviceMemory::open(std::string_view salt, std::span<const int32_t> tokens) {
  HOCKET_CHECK(!is_open_ && !tokens.empty(), "opened a second request, or an empty one");
  is_open_ = true;
  open_num_tokens_ = static_cast<int32_t>(tokens.size());
  open_blocks_.clear();
  if (enable_prefix_caching_) open_node_ = cache_.acquire(salt, tokens.first(tokens.size() - 1), &open_blocks_);
  return static_cast<int32_t>(open_blocks_.size()) * block_size_;
}

bool DeviceMemory::fits(int32_t num_running) const {
  if (num_free_rows() + num_withheld_rows_ == 0) return false;
  const int32_t num_needed = open_num_tokens_ / block_size_ + 1 - static_cast<int32_t>(open_blocks_.size());
  const int32_t num_available = pool_.num_free() + cache_.num_evictable_blocks() + num_withheld_blocks_;
  const int32_t num_others = num_running - num_withheld_rows_;
  const int32_t headroom = num_others == 0 ? 0 : num_others + 1;
  return num_needed + total_promised_ + headroom <= num_available;
}

Row DeviceMemory::seat() {
  HOCKET_CHECK(is_open_ && num_withheld_rows_ == 0, "seated a request that is not open");
  const Row row = tables_.allocate_row();
  HOCKET_CHECK(row != kNone, "seated a request without a free row");
  for (const BlockId block : open_blocks_) tables_.append(row, block);
  const int32_t num_cached = tables_.num_blocks(row);
  node_[row] = open_node_;
  capacity_[row] = num_cached * block_size_;
  num_promised_[row] = open_num_tokens_ / block_size_ + 1 - num_cached;
  total_promised_ += num_promised_[row];
  set_num_indexed(row, num_cached);
  is_open_ = false;
  open_node_ = kNone;
  return row;
}

void DeviceMemory::close() {
  HOCKET_CHECK(is_open_, "closed a request that is not open");
  if (open_node_ != kNone) cache_.release(open_node_);
  is_open_ = false;
  open_node_ = kNone;
}

void DeviceMemory::withhold(Row row) {
  if (node_[row] != kNone) cache_.unpin(node_[row]);
  ++num_withheld_rows_;
  num_withheld_blocks_ += num_owned(row);
  total_promised_ -= num_promised_[row];
}

void DeviceMemory::restore(Row row) {
  if (node_[row] != kNone) cache_.repin(node_[row]);
  --num_withheld_rows_;
  num_withheld_blocks_ -= num_owned(row);
  total_promised_ += num_promised_[row];
}

bool DeviceMemory::grow_slow(Row row, int32_t num_tokens) {
  const int32_t num_new = (num_tokens - 1) / block_size_ + 1 - tables_.num_blocks(row);
  const int32_t num_missing = num_new - pool_.num_free();
  if (num_missing > cache_.num_evictable_blocks()) return false;
  if (num_missing > 0) cache_.evict(num_missing);
  for (int32_t i = 0; i < num_new; ++i) {
    const BlockId block = pool_.allocate();
    HOCKET_CHECK(block != kNone, "the pool has fewer blocks than it counts");
    tables_.append(row, block);
  }
  capacity_[row] += num_new * block_size_;
  const int32_t num_kept = std::min(num_new, num_promised_[row]);
  num_promised_[row] -= num_kept;
  total_promised_ -= num_kept;
  return true;
}

void DeviceMemory::index_slow(Row row, std::span<const int32_t> computed) {
  const int32_t begin = num_indexed_[row];
  const int32_t end = static_cast<int32_t>(computed.size()) / block_size_;
  const auto blocks = tables_.blocks(row).subspan(begin, end - begin);
  const auto tokens = computed.subspan(static_cast<size_t>(begin) * block_size_, blocks.size() * block_size_);
  const auto [node, num_replaced] = cache_.extend(node_[row], tokens, blocks);
  node_[row] = node;
  if (num_replaced > 0) tables_.mark_changed(row, begin, begin + num_replaced);
  set_num_indexed(row, end);
}

void DeviceMemory::release(Row row) {
  for (const BlockId block : tables_.blocks(row).subspan(num_indexed_[row])) pool_.release(block);
  if (node_[row] != kNone) cache_.release(node_[row]);
  total_promised_ -= num_promised_[row];
  node_[row] = kNone;
  num_indexed_[row] = num_promised_[row] = capacity_[row] = 0;
  tables_.release_row(row);
}

void DeviceMemory::set_num_indexed(Row row, int32_t num_indexed) {
  num_indexed_[row] = num_indexed;
  next_index_at_[row] = enable_prefix_caching_ ? (num_indexed + 1) * block_size_ : kNever;
}

void DeviceMemory::check_invariants(std::span<const Row> rows) const {
  pool_.check_invariants();
  tables_.check_invariants();
  HOCKET_CHECK(!is_open_ && num_withheld_rows_ == 0 && num_withheld_blocks_ == 0, "an admission was not ended");

  std::vector<NodeId> pins;
  std::vector<uint8_t> has_owner(pool_.num_blocks(), 0);
  int32_t total_owned = 0;
  int32_t total_promised = 0;
  for (const Row row : rows) {
    HOCKET_CHECK(tables_.is_in_use(row), "a request's row is not in use");
    const auto blocks = tables_.blocks(row);
    HOCKET_CHECK(capacity_[row] == static_cast<int32_t>(blocks.size()) * block_size_, "a row's capacity is wrong");
    for (const BlockId block : blocks.subspan(num_indexed_[row])) {
      HOCKET_CHECK(!pool_.is_free(block) && !has_owner[block], "a row's own block is free or another's");
      has_owner[block] = 1;
    }
    if (node_[row] != kNone) {
      pins.push_back(node_[row]);
      const std::vector<BlockId> path = cache_.path_blocks(node_[row]);
      HOCKET_CHECK(std::ranges::equal(path, blocks.first(num_indexed_[row])), "a row differs from its cached path");
      for (const BlockId block : path) HOCKET_CHECK(!has_owner[block], "a cached block is a row's own");
    }
    total_owned += num_owned(row);
    total_promised += num_promised_[row];
  }
  cache_.check_invariants(pins);
  HOCKET_CHECK(total_promised == total_promised_, "promises differ from the rows'");
  HOCKET_CHECK(pool_.num_free() + total_owned + cache_.num_blocks() == pool_.num_blocks(),
               "free + owned + cached blocks differ from the total");
}

}  // namespace hocket
