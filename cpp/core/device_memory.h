// The device tier's memory: the pool, the prefix cache in it, and what each running request holds.
//
// A running request holds a row. The row's blocks are, in order of position:
//
//   [0, num_indexed)           owned by the prefix cache and pinned; complete and computed, shared with anybody
//   [num_indexed, num_blocks)  owned by the row; not computed yet, or not complete
//
// Admission is a conversation: open() finds and pins the cached prefix of a waiting request, fits() asks whether all of
// its tokens and one more would find memory beside what is promised to others, seat() or close() ends it. A seated
// request is promised blocks for all that it was opened with; grow() draws on the promise. Beside others, fits() also
// asks for a headroom of one block for each of them and for the newcomer. In block_size steps no request needs more
// than that, so nobody is preempted for lack of memory within block_size steps of an admission: preempted requests do
// not ping-pong. Promises and headroom bind fits() only; a running request that needs a block takes whatever is free.
//
// Eviction happens inside grow(), when the pool has nothing free. Preemption is the scheduler's business.
//
// Invariants: free + held by rows + cached = all blocks; pins = rows (and the open request).
// Thread safety: none. No allocation on grow(), index() and release() once every salt has been seen.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "batch_plan.h"
#include "block_pool.h"
#include "block_tables.h"
#include "config.h"
#include "ids.h"
#include "prefix_cache.h"

namespace hocket {

class DeviceMemory {
 public:
  // REQUIRES: config.validate() has passed.
  explicit DeviceMemory(const SchedulerConfig& config);

  // ---- admission ----

  // Opens a request of all of `tokens`; returns how many of them, from the start, are cached. The last token never is:
  // computing it is what yields the next one. REQUIRES: nothing is open; tokens is not empty.
  int32_t open(std::string_view salt, std::span<const int32_t> tokens);

  // Whether the open request can be seated beside `num_running` others. Rows that are withheld count as free.
  bool fits(int32_t num_running) const;

  // Gives the open request a row with its cached blocks. REQUIRES: fits(), and no row is withheld.
  Row seat();

  // Forgets the open request.
  void close();

  // What-if: counts the row's memory and promise as free until restore(). Nothing but open(), fits(), withhold() and
  // restore() may be called in between. REQUIRES: `row` is in use and not withheld / is withheld.
  void withhold(Row row);
  void restore(Row row);

  // ---- running ----

  // Makes sure that the row's blocks cover `num_tokens` tokens, evicting cached blocks if need be. Returns false and
  // allocates nothing if memory is short.
  bool grow(Row row, int32_t num_tokens) { return num_tokens <= capacity_[row] || grow_slow(row, num_tokens); }

  // Offers the row's complete blocks to the prefix cache.
  // REQUIRES: the vectors of all of `computed`, the request's first tokens, have been written.
  void index(Row row, std::span<const int32_t> computed) {
    if (static_cast<int32_t>(computed.size()) >= next_index_at_[row]) index_slow(row, computed);
  }

  // Gives up the row. Its indexed blocks stay cached until they are evicted, the others are free at once.
  void release(Row row);

  // Drops every block that nobody runs; returns how many.
  int32_t reset_cache() { return cache_.evict(std::numeric_limits<int32_t>::max()); }

  // Writes what changed in the block tables since the last call.
  void flush_changes(BatchPlan* plan) { tables_.flush_changes(pool_, plan); }

  int32_t num_free_rows() const { return tables_.num_free_rows(); }
  int32_t num_blocks() const { return pool_.num_blocks(); }
  const BlockPool& pool() const { return pool_; }
  const PrefixCache& cache() const { return cache_; }
  const BlockTables& tables() const { return tables_; }

  // Throws CoreError on the first broken invariant. `rows`: all that are in use. O(units).
  void check_invariants(std::span<const Row> rows) const;

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  bool grow_slow(Row row, int32_t num_tokens);
  void index_slow(Row row, std::span<const int32_t> computed);
  int32_t num_owned(Row row) const { return tables_.num_blocks(row) - num_indexed_[row]; }
  void set_num_indexed(Row row, int32_t num_indexed);

  const int32_t block_size_;
  const bool enable_prefix_caching_;
  BlockPool pool_;
  PrefixCache cache_;
  BlockTables tables_;

  // By row, for rows in use
  std::vector<NodeId> node_;            // pinned in the cache; kNone without prefix caching
  std::vector<int32_t> num_indexed_;    // blocks
  std::vector<int32_t> num_promised_;   // blocks promised at admission and not allocated yet
  std::vector<int32_t> capacity_;       // tokens that the row's blocks can hold
  std::vector<int32_t> next_index_at_;  // computed tokens that complete the next block to index

  int32_t total_promised_ = 0;  // over rows that are not withheld
  int32_t num_withheld_rows_ = 0;
  int32_t num_withheld_blocks_ = 0;  // owned by withheld rows

  // The open request
  bool is_open_ = false;
  NodeId open_node_ = kNone;
  int32_t open_num_tokens_ = 0;
  std::vector<BlockId> open_blocks_;  // cached
};

}  // namespace hocket
