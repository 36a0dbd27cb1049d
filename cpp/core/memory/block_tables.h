// The block tables of the running requests: row -> blocks, and what the worker has not been told of them yet.
//
// The worker keeps the real tables, int32 [max_num_seqs][num_groups][2][max_blocks_per_seq] of unit ids (batch_plan.h).
// Here each row is the list of blocks; changes are remembered as one range per row and leave with the next plan.
// A released row keeps its stale entries at the worker: nobody reads a block beyond a sequence's length. An entry may
// be kNone: its tokens are not cached, and the worker keeps their vectors in a workspace.
//
// Invariants: a row is free or in use; changed ranges lie within the row's blocks.
// Thread safety: none. No allocation after construction, except in a plan that carries more changes than any before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/table_changes.h"
#include "memory/block_pool.h"

namespace hocket {

class BlockTables {
 public:
  BlockTables(int32_t max_num_seqs, int32_t max_blocks_per_seq);

  // An empty row, or kNone if all are in use.
  Row allocate_row();

  // Forgets the row's blocks. REQUIRES: `row` is in use.
  void release_row(Row row);

  // REQUIRES for all below: `row` is in use.
  void append(Row row, BlockId block);
  std::span<BlockId> blocks(Row row) { return {row_begin(row), static_cast<size_t>(num_blocks_[row])}; }
  std::span<const BlockId> blocks(Row row) const { return {row_begin(row), static_cast<size_t>(num_blocks_[row])}; }
  int32_t num_blocks(Row row) const { return num_blocks_[row]; }

  // The caller has overwritten blocks(row)[begin, end).
  void mark_changed(Row row, int32_t begin, int32_t end);

  // Writes every change since the last call to *changes.
  void flush_changes(const BlockPool& pool, TableChanges* changes);

  int32_t num_free_rows() const { return static_cast<int32_t>(free_rows_.size()); }
  bool is_in_use(Row row) const { return is_in_use_[row] != 0; }

  // Throws CoreError on the first broken invariant. O(rows).
  void check_invariants() const;

 private:
  BlockId* row_begin(Row row) const { return table_.get() + static_cast<size_t>(row) * max_blocks_per_seq_; }
  void flush_row(Row row, const BlockPool& pool, TableChanges* changes) const;

  const int32_t max_blocks_per_seq_;
  std::unique_ptr<BlockId[]> table_;  // [max_num_seqs][max_blocks_per_seq], touched only as far as it is used

  // By row
  std::vector<int32_t> num_blocks_;
  std::vector<int32_t> changed_begin_;  // blocks [changed_begin, changed_end) are news to the worker
  std::vector<int32_t> changed_end_;
  std::vector<uint8_t> is_in_use_;

  std::vector<Row> free_rows_;     // a stack
  std::vector<Row> changed_rows_;  // rows with a range that is not empty, and rows released since
};

}  // namespace hocket
