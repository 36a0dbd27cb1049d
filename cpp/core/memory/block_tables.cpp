#include "memory/block_tables.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace hocket {

BlockTables::BlockTables(int32_t max_num_seqs, int32_t max_blocks_per_seq)
    : max_blocks_per_seq_(max_blocks_per_seq),
      table_(std::make_unique_for_overwrite<BlockId[]>(static_cast<size_t>(max_num_seqs) * max_blocks_per_seq)),
      num_blocks_(max_num_seqs, 0),
      changed_begin_(max_num_seqs, 0),
      changed_end_(max_num_seqs, 0),
      is_in_use_(max_num_seqs, 0),
      free_rows_(max_num_seqs) {
  std::iota(free_rows_.rbegin(), free_rows_.rend(), 0);
  changed_rows_.reserve(2 * static_cast<size_t>(max_num_seqs));
}

Row BlockTables::allocate_row() {
  if (free_rows_.empty()) return kNone;
  const Row row = free_rows_.back();
  free_rows_.pop_back();
  is_in_use_[row] = 1;
  return row;
}

void BlockTables::release_row(Row row) {
  HOCKET_CHECK(is_in_use(row), "released a row that is not in use");
  num_blocks_[row] = changed_begin_[row] = changed_end_[row] = 0;
  is_in_use_[row] = 0;
  free_rows_.push_back(row);
}

void BlockTables::append(Row row, BlockId block) {
  const int32_t index = num_blocks_[row];
  HOCKET_CHECK(index < max_blocks_per_seq_, "a block table row is full");
  row_begin(row)[index] = block;
  num_blocks_[row] = index + 1;
  mark_changed(row, index, index + 1);
}

void BlockTables::mark_changed(Row row, int32_t begin, int32_t end) {
  if (changed_begin_[row] == changed_end_[row]) {
    changed_rows_.push_back(row);
    changed_begin_[row] = begin;
    changed_end_[row] = end;
  } else {
    changed_begin_[row] = std::min(changed_begin_[row], begin);
    changed_end_[row] = std::max(changed_end_[row], end);
  }
}

void BlockTables::flush_changes(const BlockPool& pool, TableChanges* changes) {
  for (const Row row : changed_rows_) {
    flush_row(row, pool, changes);
    changed_begin_[row] = changed_end_[row] = 0;
  }
  changed_rows_.clear();
}

void BlockTables::flush_row(Row row, const BlockPool& pool, TableChanges* changes) const {
  const int32_t units_per_block = pool.units_per_block();
  const BlockId* blocks = row_begin(row);
  const int64_t base = static_cast<int64_t>(row) * units_per_block * max_blocks_per_seq_;
  for (int32_t i = changed_begin_[row]; i < changed_end_[row]; ++i) {
    if (blocks[i] == kNone) continue;
    const auto units = pool.units(blocks[i]);
    changes->unit.insert(changes->unit.end(), units.begin(), units.end());
    for (size_t part = 0; part < units.size(); ++part) {  // group * 2 + kind
      changes->index.push_back(base + static_cast<int64_t>(part) * max_blocks_per_seq_ + i);
    }
  }
}

void BlockTables::check_invariants() const {
  const auto num_in_use = std::count(is_in_use_.begin(), is_in_use_.end(), uint8_t{1});
  HOCKET_CHECK(num_in_use + free_rows_.size() == is_in_use_.size(), "free + used rows differ from the total");
  for (const Row row : free_rows_) HOCKET_CHECK(!is_in_use(row) && num_blocks_[row] == 0, "a free row is in use");
  for (size_t row = 0; row < is_in_use_.size(); ++row) {
    HOCKET_CHECK(changed_end_[row] <= num_blocks_[row], "a row's changes lie outside of it");
  }
}

}  // namespace hocket
