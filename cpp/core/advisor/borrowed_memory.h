// Memory that another engine owns, as that engine tells of it once per step.
//
// One block of ours stands for block_size tokens of all layers, whatever the owner splits it into: two units, as if the
// model had one layer group. Who computes what is told, and from that follows who holds how much; what is free is told.
// Promises are beliefs here: the owner allocates as it goes, and says no when it has to.
//
// Thread safety: none. No allocation after construction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/memory_view.h"

namespace hocket {

class BorrowedMemory final : public MemoryView {
 public:
  explicit BorrowedMemory(const SchedulerConfig& config)
      : block_size_(config.block_size),
        units_per_block_(config.units_per_block()),
        num_kv_blocks_(config.num_blocks()),
        num_rows_(config.max_num_seqs),
        num_free_blocks_(num_kv_blocks_),
        num_blocks_(num_rows_),
        num_shared_(num_rows_),
        num_promised_(num_rows_) {
    for (Row row = num_rows_; row > 0; --row) free_rows_.push_back(row - 1);
  }

  // ---- what is told ----

  void set_free_blocks(int32_t num_blocks) { num_free_blocks_ = std::clamp(num_blocks, 0, num_kv_blocks_); }
  // A request began to run, with so many tokens from the cache. REQUIRES: a row is free.
  Row seat(int32_t num_cached_tokens) {
    const Row row = free_rows_.back();
    free_rows_.pop_back();
    num_shared_[row] = num_cached_tokens / block_size_;
    num_blocks_[row] = num_shared_[row];
    num_promised_[row] = 0;
    return row;
  }
  // It has computed so many of its known tokens. REQUIRES: the row is in use.
  void observe(Row row, int32_t num_computed, int32_t num_known) {
    num_blocks_[row] = std::max(blocks_for(num_computed), num_shared_[row]);
    const int32_t num_promised = std::max(0, blocks_for(num_known) - num_blocks_[row]);
    total_promised_ += num_promised - num_promised_[row];
    num_promised_[row] = num_promised;
  }
  // It runs no longer. REQUIRES: the row is in use.
  void release(Row row) {
    total_promised_ -= num_promised_[row];
    free_rows_.push_back(row);
  }

  // ---- what policies read ----

  int32_t block_size() const override { return block_size_; }
  int32_t units_per_block() const override { return units_per_block_; }
  int32_t num_kv_blocks() const override { return num_kv_blocks_; }
  int32_t num_free_rows() const override { return static_cast<int32_t>(free_rows_.size()); }
  int32_t num_available_units() const override { return num_free_blocks_ * units_per_block_; }
  int32_t num_valuable_units() const override { return 0; }
  bool has_forms() const override { return false; }
  int32_t num_promised_units() const override { return total_promised_ * units_per_block_; }

  int32_t num_promised_units(Row row) const override { return num_promised_[row] * units_per_block_; }
  int32_t num_held_units(Row row) const override { return (num_blocks_[row] - num_shared_[row]) * units_per_block_; }
  int32_t num_blocks(Row row) const override { return num_blocks_[row]; }
  int32_t num_shared_blocks(Row row) const override { return num_shared_[row]; }
  CacheForm form(Row) const override { return {}; }
  bool can_uncache(Row) const override { return false; }

  // The owner's cache is not mirrored: what a request will find is told with the request (Advisor::set_cached()).
  int32_t num_cached_blocks(std::string_view, std::span<const int32_t>) const override { return 0; }
  void add_pending(std::string_view, std::span<const int32_t>, int32_t) override {}

 private:
  int32_t blocks_for(int32_t num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  const int32_t block_size_;
  const int32_t units_per_block_;
  const int32_t num_kv_blocks_;
  const int32_t num_rows_;
  int32_t num_free_blocks_;
  int32_t total_promised_ = 0;

  // By row
  std::vector<int32_t> num_blocks_;
  std::vector<int32_t> num_shared_;
  std::vector<int32_t> num_promised_;
  std::vector<Row> free_rows_;
};

}  // namespace hocket
