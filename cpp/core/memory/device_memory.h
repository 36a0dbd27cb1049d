// The device tier's memory: the pool, the prefix cache in it, and what each running request holds.
//
// A running request holds a row. The row's blocks are, in order of position:
//
//   [0, num_indexed)           owned by the prefix cache and pinned; complete and computed, shared with anybody
//   [num_indexed, num_blocks)  owned by the row; not computed yet, or not complete
//
// A row of another form than KV (cache_form.h) is private: what it owns is not offered to the prefix cache. Its own
// blocks are hidden ones, or in int8, or the first of them are uncached, their tokens recomputed in every step. A
// hidden row may still stand on a cached KV prefix; a row with uncached blocks cannot. So a row that shares its blocks
// with nobody takes them out of the cache when it becomes one, and offers them again once it has them all. A row in
// int8 has all of its blocks in it: of those that were cached it gets copies, rounded, and gives up the cached ones.
//
// Memory is counted in units, since a block of a compact kind takes fewer of them than a KV block.
//
// Admission is a conversation: open() finds and pins the cached prefix of a waiting request, fits() asks whether all of
// its tokens and one more would find memory beside what is promised to others, seat() or close() ends it. A seated
// request is promised blocks for all that it was opened with; grow() draws on the promise. Beside others, fits() also
// asks for a headroom of one block, of its kind, for each of them and for the newcomer. In block_size steps no request
// needs more than that, so nobody is preempted for lack of memory within block_size steps of an admission: preempted
// requests do not ping-pong. Promises and headroom bind fits() only; a running request that needs a block takes
// whatever is free.
//
// Eviction happens inside grow(), when the pool has nothing free. Preemption is the scheduler's business.
//
// Invariants: free + held by rows + cached = all units; pins = rows (and the open request).
// Thread safety: none. No allocation on grow(), index() and release() once every salt has been seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "base/cache_form.h"
#include "base/config.h"
#include "base/form_plan.h"
#include "base/ids.h"
#include "base/memory_view.h"
#include "base/table_changes.h"
#include "memory/block_pool.h"
#include "memory/block_tables.h"
#include "memory/prefix_cache.h"

namespace hocket {

class DeviceMemory final : public MemoryView {
 public:
  // REQUIRES: config.validate() has passed.
  explicit DeviceMemory(const SchedulerConfig& config, bool is_task_aware = true);

  // ---- admission ----

  // Opens a request of all of `tokens`; returns how many of them, from the start, are cached. The last token never is:
  // computing it is what yields the next one. REQUIRES: nothing is open; tokens is not empty.
  int32_t open(std::string_view salt, std::span<const int32_t> tokens, CacheForm form = {}, bool is_online = true);

  // Whether the open request can be seated beside `num_running` others. Rows that are withheld count as free.
  bool fits(int32_t num_running) const;

  // Gives the open request a row with its cached blocks; in int8, what is to be rounded of them is noted in *forms,
  // which is not read otherwise. REQUIRES: fits(), and no row is withheld.
  Row seat(FormPlan* forms = nullptr);

  // Forgets the open request.
  void close();

  // Units that the open request needs beside what is cached.
  int32_t num_open_units() const;

  // What-if: counts the row's memory and promise as free until unwithhold(). Nothing but open(), fits(), withhold() and
  // unwithhold() may be called in between. REQUIRES: `row` is in use and not withheld / is withheld.
  void withhold(Row row);
  void unwithhold(Row row);

  // ---- running ----

  // Makes sure that the row's blocks cover `num_tokens` tokens, evicting cached blocks if need be. Returns false and
  // allocates nothing if memory is short.
  bool grow(Row row, int32_t num_tokens) { return num_tokens <= capacity_[row] || grow_slow(row, num_tokens); }

  // Offers the row's complete blocks to the prefix cache. pending: for each block that is new, the offline requests
  // that wait and will use it; empty if there are none.
  // REQUIRES: the vectors of all of `computed`, the request's first tokens, have been written.
  void index(Row row, std::span<const int32_t> computed, std::span<const uint32_t> pending = {}) {
    if (can_index(row, static_cast<int32_t>(computed.size()))) index_slow(row, computed, pending);
  }
  bool can_index(Row row, int32_t num_computed) const { return num_computed >= next_index_at_[row]; }
  int32_t num_shared_blocks(Row row) const override { return num_shared_[row]; }  // cached when the row was seated
  int32_t num_indexed_blocks(Row row) const { return num_indexed_[row]; }

  // ---- what waits (prefix_cache.h) ----

  void add_pending(std::string_view salt, std::span<const int32_t> tokens, int32_t delta) override {
    if (enable_prefix_caching_) cache_.add_pending(salt, tokens, delta);
  }
  int32_t num_cached_blocks(std::string_view salt, std::span<const int32_t> tokens) const override {
    return enable_prefix_caching_ ? cache_.num_cached_blocks(salt, tokens) : 0;
  }

  // ---- what comes back from other tiers ----

  // Blocks under way to the device.
  struct Arrival {
    NodeId node = kNone;  // pinned; the cached prefix that the blocks continue
    std::vector<BlockId> blocks;
    int32_t num_promised = 0;  // units kept for whoever waits for the blocks
    bool is_online = true;
  };

  // Pins the cached prefix of `tokens`, which are complete blocks, and takes blocks for the rest; returns how many
  // blocks were cached. REQUIRES: *arrival is empty; there is memory for what is not cached.
  int32_t begin_arrival(std::string_view salt, std::span<const int32_t> tokens, bool is_online, int32_t num_promised,
                        Arrival* arrival);
  // The blocks join the prefix cache, and *arrival is empty again. REQUIRES: `tokens` are those of begin_arrival(), and
  // their vectors have been written.
  void end_arrival(std::span<const int32_t> tokens, Arrival* arrival);

  // Whether so many blocks fit beside `num_running` requests, without dropping what somebody is expected to use.
  bool has_room_for(int32_t num_blocks, int32_t num_running) const {
    const int32_t num_units = (num_blocks + num_running + 1) * pool_.units_per_block();
    return num_units + total_promised_ <= num_available_units() - num_valuable_units();
  }

  void add_lease(std::string_view salt, std::span<const int32_t> tokens, int32_t delta) {
    if (enable_prefix_caching_) cache_.add_lease(salt, tokens, delta);
  }

  // Whether the row may do without its first blocks: nobody else has them, or is expected to.
  bool can_uncache(Row row) const override { return num_indexed_[row] == 0 || cache_.is_own(node_[row]); }
  // Changes how the row's tokens are kept: hidden -> KV, KV -> int8, more or fewer uncached blocks. Returns false and
  // changes nothing if memory is short, or the row cannot do without its first blocks. REQUIRES: not KV -> hidden, not
  // from int8; uncached blocks only of those that the row covers.
  // What becomes K and V, or int8, is noted in *forms.
  bool reshape(Row row, CacheForm form, FormPlan* forms);

  // Gives up the row. Its indexed blocks stay cached until they are evicted, the others are free at once.
  void release(Row row);

  // Drops every block that nobody runs; returns how many.
  int32_t reset_cache() { return cache_.evict(std::numeric_limits<int32_t>::max()); }

  // Writes what changed in the block tables since the last call.
  void flush_changes(TableChanges* changes) { tables_.flush_changes(pool_, changes); }

  int32_t num_free_rows() const override { return tables_.num_free_rows(); }
  int32_t block_size() const override { return block_size_; }
  int32_t units_per_block() const override { return pool_.units_per_block(); }
  int32_t num_kv_blocks() const override { return pool_.num_kv_blocks(); }
  int32_t num_evictable_units() const { return cache_.num_evictable_blocks() * pool_.units_per_block(); }
  int32_t num_available_units() const override { return pool_.num_free_units() + num_evictable_units(); }
  int32_t num_valuable_units() const override {
    return cache_.num_valuable_evictable_blocks() * pool_.units_per_block();
  }
  int32_t num_promised_units() const override { return total_promised_; }
  bool has_forms() const override { return num_formed_rows_ > 0; }
  int32_t num_promised_units(Row row) const override { return num_promised_[row]; }
  int32_t num_blocks(Row row) const override { return tables_.num_blocks(row); }
  CacheForm form(Row row) const override { return form_[row]; }
  // Units that only this row holds: those it would give up, apart from what the cache would keep of it.
  int32_t num_held_units(Row row) const override {
    return (tables_.num_blocks(row) - num_shared_[row] - form_[row].num_uncached_blocks) *
           pool_.units_of(form_[row].kind);
  }
  const BlockPool& pool() const { return pool_; }
  const PrefixCache& cache() const { return cache_; }
  const BlockTables& tables() const { return tables_; }

  // Throws CoreError on the first broken invariant. `rows`: all that are in use; `arrivals`: all that have begun.
  // O(units).
  void check_invariants(std::span<const Row> rows, std::span<const Arrival* const> arrivals = {}) const;

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  bool grow_slow(Row row, int32_t num_tokens);
  void keep_promise(Row row, int32_t num_units);
  void index_slow(Row row, std::span<const int32_t> computed, std::span<const uint32_t> pending);
  int32_t num_owned(Row row) const {
    return tables_.num_blocks(row) - std::max(num_indexed_[row], form_[row].num_uncached_blocks);
  }
  int32_t num_owned_units(Row row) const { return num_owned(row) * pool_.units_of(form_[row].kind); }
  bool has_form(Row row) const { return form_[row] != CacheForm{}; }
  bool is_compact(Row row) const { return form_[row].kind != CacheKind::kKv; }
  bool can_round(Row row);
  void round(Row row, FormPlan* forms);
  int32_t headroom(int32_t num_others) const;
  void set_num_indexed(Row row, int32_t num_indexed);
  bool make_free(int32_t num_units);

  const int32_t block_size_;
  const bool enable_prefix_caching_;
  BlockPool pool_;
  PrefixCache cache_;
  BlockTables tables_;

  // By row, for rows in use
  std::vector<NodeId> node_;          // pinned in the cache; kNone without prefix caching
  std::vector<int32_t> num_indexed_;  // blocks
  std::vector<int32_t> num_shared_;   // blocks that were cached when the row was seated
  std::vector<CacheForm> form_;       // of what the row owns
  std::vector<uint8_t> is_online_;
  std::vector<int32_t> num_promised_;   // units promised at admission and not allocated yet
  std::vector<int32_t> capacity_;       // tokens that the row's blocks can hold
  std::vector<int32_t> next_index_at_;  // computed tokens that complete the next block to index

  int32_t total_promised_ = 0;    // over rows that are not withheld
  int32_t num_compact_rows_ = 0;  // that are not withheld
  int32_t num_formed_rows_ = 0;   // withheld ones, too
  int32_t num_withheld_rows_ = 0;
  int32_t num_withheld_units_ = 0;  // owned by withheld rows

  // The open request
  bool is_open_ = false;
  NodeId open_node_ = kNone;
  int32_t open_num_tokens_ = 0;
  CacheForm open_form_;
  bool open_is_online_ = true;
  std::vector<BlockId> open_blocks_;  // cached

  std::vector<BlockId> cached_blocks_;  // scratch
};

}  // namespace hocket
