#include "memory/device_memory.h"

#include <algorithm>

#include "base/check.h"
#include "memory/prefix_cache_check.h"

namespace hocket {

DeviceMemory::DeviceMemory(const SchedulerConfig& config, bool is_task_aware)
    : block_size_(config.block_size),
      enable_prefix_caching_(config.enable_prefix_caching),
      pool_(config.num_units, config.units_per_block(), config.compact_units_per_block()),
      cache_(&pool_, config.block_size, is_task_aware),
      tables_(config.max_num_seqs, config.max_blocks_per_seq()),
      node_(config.max_num_seqs, kNone),
      num_indexed_(config.max_num_seqs, 0),
      num_shared_(config.max_num_seqs, 0),
      form_(config.max_num_seqs),
      is_online_(config.max_num_seqs, 1),
      num_promised_(config.max_num_seqs, 0),
      capacity_(config.max_num_seqs, 0),
      next_index_at_(config.max_num_seqs, kNever) {
  open_blocks_.reserve(config.max_blocks_per_seq());
  cached_blocks_.reserve(config.max_blocks_per_seq());
}

int32_t DeviceMemory::open(std::string_view salt, std::span<const int32_t> tokens, CacheForm form, bool is_online) {
  HOCKET_CHECK(!is_open_ && !tokens.empty(), "opened a second request, or an empty one");
  is_open_ = true;
  open_num_tokens_ = static_cast<int32_t>(tokens.size());
  open_form_ = form;
  open_is_online_ = is_online;
  open_blocks_.clear();
  // Without its first blocks it stands on the root: it shares nothing until it has them.
  const size_t num_shareable = form.num_uncached_blocks == 0 ? tokens.size() - 1 : 0;
  if (enable_prefix_caching_) open_node_ = cache_.acquire(salt, tokens.first(num_shareable), &open_blocks_, is_online);
  return static_cast<int32_t>(open_blocks_.size()) * block_size_;
}

bool DeviceMemory::fits(int32_t num_running) const {
  if (num_free_rows() + num_withheld_rows_ == 0) return false;
  const int32_t num_available = num_available_units() + num_withheld_units_;
  const int32_t num_others = num_running - num_withheld_rows_;
  return num_open_units() + total_promised_ + headroom(num_others) <= num_available;
}

int32_t DeviceMemory::headroom(int32_t num_others) const {
  if (num_others == 0) return 0;
  const int32_t num_compact = num_compact_rows_ + (open_form_.kind != CacheKind::kKv);
  return (num_others + 1 - num_compact) * pool_.units_per_block() + num_compact * pool_.compact_units_per_block();
}

int32_t DeviceMemory::num_open_units() const {
  const auto num_cached = open_form_.kind == CacheKind::kInt8 ? 0 : static_cast<int32_t>(open_blocks_.size());
  const int32_t num_there = num_cached + open_form_.num_uncached_blocks;
  return std::max(0, open_num_tokens_ / block_size_ + 1 - num_there) * pool_.units_of(open_form_.kind);
}

Row DeviceMemory::seat(FormPlan* forms) {
  HOCKET_CHECK(is_open_ && num_withheld_rows_ == 0, "seated a request that is not open");
  const Row row = tables_.allocate_row();
  HOCKET_CHECK(row != kNone, "seated a request without a free row");
  for (const BlockId block : open_blocks_) tables_.append(row, block);
  const int32_t num_cached = tables_.num_blocks(row);
  for (int32_t i = 0; i < open_form_.num_uncached_blocks; ++i) tables_.append(row, kNone);
  node_[row] = open_node_;
  form_[row] = open_form_;
  num_compact_rows_ += is_compact(row);
  num_formed_rows_ += has_form(row);
  is_online_[row] = open_is_online_;
  num_shared_[row] = num_cached;
  capacity_[row] = tables_.num_blocks(row) * block_size_;
  num_promised_[row] = num_open_units();
  total_promised_ += num_promised_[row];
  set_num_indexed(row, num_cached);
  is_open_ = false;
  open_node_ = kNone;
  if (open_form_.kind == CacheKind::kInt8) {
    round(row, forms);
    keep_promise(row, num_cached * pool_.compact_units_per_block());
  }
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
  num_compact_rows_ -= is_compact(row);
  num_withheld_units_ += num_owned_units(row);
  total_promised_ -= num_promised_[row];
}

void DeviceMemory::unwithhold(Row row) {
  if (node_[row] != kNone) cache_.repin(node_[row]);
  --num_withheld_rows_;
  num_compact_rows_ += is_compact(row);
  num_withheld_units_ -= num_owned_units(row);
  total_promised_ += num_promised_[row];
}

bool DeviceMemory::grow_slow(Row row, int32_t num_tokens) {
  const int32_t num_new = (num_tokens - 1) / block_size_ + 1 - tables_.num_blocks(row);
  const int32_t num_units = num_new * pool_.units_of(form_[row].kind);
  if (!make_free(num_units)) return false;
  for (int32_t i = 0; i < num_new; ++i) {
    const BlockId block = pool_.allocate(form_[row].kind);
    HOCKET_CHECK(block != kNone, "the pool has fewer blocks than it counts");
    tables_.append(row, block);
  }
  capacity_[row] += num_new * block_size_;
  keep_promise(row, num_units);
  return true;
}

// So many units have been allocated, of those that were promised.
void DeviceMemory::keep_promise(Row row, int32_t num_units) {
  const int32_t num_kept = std::min(num_units, num_promised_[row]);
  num_promised_[row] -= num_kept;
  total_promised_ -= num_kept;
}

// Evicts until `num_units` are free, or nothing if that is not enough.
bool DeviceMemory::make_free(int32_t num_units) {
  const int32_t num_missing = num_units - pool_.num_free_units();
  if (num_missing <= 0) return true;
  if (num_missing > num_evictable_units()) return false;
  cache_.evict((num_missing - 1) / pool_.units_per_block() + 1);
  return true;
}

int32_t DeviceMemory::begin_arrival(std::string_view salt, std::span<const int32_t> tokens, bool is_online,
                                    int32_t num_promised, Arrival* arrival) {
  HOCKET_CHECK(arrival->node == kNone && arrival->blocks.empty(), "an arrival began twice");
  cached_blocks_.clear();
  arrival->node = cache_.acquire(salt, tokens, &cached_blocks_, is_online);
  arrival->is_online = is_online;
  const auto num_cached = static_cast<int32_t>(cached_blocks_.size());
  const int32_t num_new = static_cast<int32_t>(tokens.size()) / block_size_ - num_cached;
  HOCKET_CHECK(make_free(num_new * pool_.units_per_block()), "there is no memory for what arrives");
  for (int32_t i = 0; i < num_new; ++i) arrival->blocks.push_back(pool_.allocate());
  arrival->num_promised = num_promised;
  total_promised_ += num_promised;
  return num_cached;
}

void DeviceMemory::end_arrival(std::span<const int32_t> tokens, Arrival* arrival) {
  const auto rest = tokens.last(arrival->blocks.size() * block_size_);
  cache_.release(cache_.extend(arrival->node, rest, arrival->blocks, {}, arrival->is_online).node);
  total_promised_ -= arrival->num_promised;
  arrival->node = kNone;
  arrival->blocks.clear();
  arrival->num_promised = 0;
}

bool DeviceMemory::reshape(Row row, CacheForm form, FormPlan* forms) {
  const CacheForm old = form_[row];
  if (form.kind == CacheKind::kInt8) {
    HOCKET_CHECK(old == CacheForm{}, "only K and V become int8");
    if (!can_round(row)) return false;
    form_[row] = form;
    ++num_compact_rows_;
    ++num_formed_rows_;
    round(row, forms);
    keep_promise(row, num_promised_[row] / 2);  // what is still to come takes half, too
    return true;
  }
  if (form.num_uncached_blocks > 0 && !can_uncache(row)) return false;
  const auto blocks = tables_.blocks(row);
  const auto num_blocks = static_cast<int32_t>(blocks.size());
  HOCKET_CHECK(old.kind == form.kind || form.kind == CacheKind::kKv, "K and V cannot become hidden states");
  HOCKET_CHECK(form.num_uncached_blocks <= num_blocks, "more blocks to leave uncached than there are");
  if (form.num_uncached_blocks > 0 && num_indexed_[row] > 0) {
    node_[row] = cache_.withdraw(node_[row]);
    num_indexed_[row] = num_shared_[row] = 0;
  }
  const int32_t first = std::max(num_indexed_[row], form.num_uncached_blocks);  // of those to be there
  const int32_t num_wanted = (num_blocks - first) * pool_.units_of(form.kind);
  if (!make_free(num_wanted - num_owned_units(row))) return false;
  for (int32_t i = num_indexed_[row]; i < num_blocks; ++i) {
    const bool is_wrong = i < first || (blocks[i] != kNone && pool_.kind(blocks[i]) != form.kind);
    if (blocks[i] == kNone || !is_wrong) continue;
    if (i >= first) {
      forms->projections.push_back({row, i});
      const auto units = pool_.units(blocks[i]);
      forms->projected_units.insert(forms->projected_units.end(), units.begin(), units.end());
    }
    pool_.release(blocks[i]);
    blocks[i] = kNone;
  }
  for (int32_t i = first; i < num_blocks; ++i) {
    if (blocks[i] != kNone) continue;
    blocks[i] = pool_.allocate(form.kind);
    HOCKET_CHECK(blocks[i] != kNone, "the pool has fewer units than it counts");
    tables_.mark_changed(row, i, i + 1);
  }
  num_compact_rows_ -= is_compact(row) && form.kind == CacheKind::kKv;
  num_formed_rows_ -= has_form(row);
  form_[row] = form;
  num_formed_rows_ += has_form(row);
  set_num_indexed(row, num_indexed_[row]);
  return true;
}

// What the row would give up counts: its own blocks, and cached ones that nobody else uses.
bool DeviceMemory::can_round(Row row) {
  if (node_[row] != kNone) cache_.unpin(node_[row]);
  const int32_t num_wanted = tables_.num_blocks(row) * pool_.compact_units_per_block();
  const bool can = num_wanted - num_owned(row) * pool_.units_per_block() <= num_available_units();
  if (node_[row] != kNone) cache_.repin(node_[row]);
  return can;
}

// All blocks of the row, which are K and V, get units for int8.
void DeviceMemory::round(Row row, FormPlan* forms) {
  const auto blocks = tables_.blocks(row);
  const auto num_blocks = static_cast<int32_t>(blocks.size());
  for (int32_t i = 0; i < num_blocks; ++i) {
    forms->roundings.push_back({row, i});
    const auto units = pool_.units(blocks[i]);
    forms->rounded_units.insert(forms->rounded_units.end(), units.begin(), units.end());
    if (i >= num_indexed_[row]) pool_.release(blocks[i]);
  }
  if (node_[row] != kNone) cache_.release(node_[row]);
  node_[row] = kNone;
  num_shared_[row] = 0;
  set_num_indexed(row, 0);
  HOCKET_CHECK(make_free(num_blocks * pool_.compact_units_per_block()), "there is no memory for what is rounded");
  for (int32_t i = 0; i < num_blocks; ++i) {
    blocks[i] = pool_.allocate(CacheKind::kInt8);
    HOCKET_CHECK(blocks[i] != kNone, "the pool has fewer units than it counts");
  }
  if (num_blocks > 0) tables_.mark_changed(row, 0, num_blocks);
}

void DeviceMemory::index_slow(Row row, std::span<const int32_t> computed, std::span<const uint32_t> pending) {
  const int32_t begin = num_indexed_[row];
  const int32_t end = static_cast<int32_t>(computed.size()) / block_size_;
  const auto blocks = tables_.blocks(row).subspan(begin, end - begin);
  const auto tokens = computed.subspan(static_cast<size_t>(begin) * block_size_, blocks.size() * block_size_);
  const auto [node, num_replaced] = cache_.extend(node_[row], tokens, blocks, pending, is_online_[row] != 0);
  node_[row] = node;
  if (num_replaced > 0) tables_.mark_changed(row, begin, begin + num_replaced);
  set_num_indexed(row, end);
}

void DeviceMemory::release(Row row) {
  const int32_t num_kept = std::max(num_indexed_[row], form_[row].num_uncached_blocks);
  for (const BlockId block : tables_.blocks(row).subspan(num_kept)) pool_.release(block);
  if (node_[row] != kNone) cache_.release(node_[row]);
  total_promised_ -= num_promised_[row];
  num_compact_rows_ -= is_compact(row);
  num_formed_rows_ -= has_form(row);
  node_[row] = kNone;
  form_[row] = {};
  num_indexed_[row] = num_promised_[row] = capacity_[row] = num_shared_[row] = 0;
  tables_.release_row(row);
}

void DeviceMemory::set_num_indexed(Row row, int32_t num_indexed) {
  num_indexed_[row] = num_indexed;
  next_index_at_[row] = node_[row] != kNone && !has_form(row) ? (num_indexed + 1) * block_size_ : kNever;
}

void DeviceMemory::check_invariants(std::span<const Row> rows, std::span<const Arrival* const> arrivals) const {
  pool_.check_invariants();
  tables_.check_invariants();
  HOCKET_CHECK(!is_open_ && num_withheld_rows_ == 0 && num_withheld_units_ == 0, "an admission was not ended");

  std::vector<NodeId> pins;
  std::vector<uint8_t> has_owner(pool_.num_blocks(), 0);
  int32_t total_owned = 0;
  int32_t total_promised = 0;
  HOCKET_CHECK(std::ranges::count_if(rows, [&](Row row) { return is_compact(row); }) == num_compact_rows_,
               "compact rows are miscounted");
  HOCKET_CHECK(std::ranges::count_if(rows, [&](Row row) { return has_form(row); }) == num_formed_rows_,
               "rows of other forms are miscounted");
  for (const Row row : rows) {
    HOCKET_CHECK(tables_.is_in_use(row), "a request's row is not in use");
    const auto blocks = tables_.blocks(row);
    HOCKET_CHECK(capacity_[row] == static_cast<int32_t>(blocks.size()) * block_size_, "a row's capacity is wrong");
    const int32_t num_uncached = form_[row].num_uncached_blocks;
    HOCKET_CHECK(num_uncached == 0 || num_indexed_[row] == 0, "a row is cached and uncached at once");
    for (const BlockId block : blocks.first(num_uncached)) HOCKET_CHECK(block == kNone, "an uncached block is there");
    for (const BlockId block : blocks.subspan(std::max(num_indexed_[row], num_uncached))) {
      HOCKET_CHECK(pool_.kind(block) == form_[row].kind, "a row's own block is of another kind");
      HOCKET_CHECK(!pool_.is_free(block) && !has_owner[block], "a row's own block is free or another's");
      has_owner[block] = 1;
    }
    if (node_[row] != kNone) {
      pins.push_back(node_[row]);
      const std::vector<BlockId> path = PrefixCacheCheck(cache_).path_blocks(node_[row]);
      HOCKET_CHECK(std::ranges::equal(path, blocks.first(num_indexed_[row])), "a row differs from its cached path");
      for (const BlockId block : path) HOCKET_CHECK(!has_owner[block], "a cached block is a row's own");
    }
    total_owned += num_owned_units(row);
    total_promised += num_promised_[row];
  }
  for (const Arrival* arrival : arrivals) {
    pins.push_back(arrival->node);
    total_promised += arrival->num_promised;
    total_owned += static_cast<int32_t>(arrival->blocks.size()) * pool_.units_per_block();
    for (const BlockId block : arrival->blocks) {
      HOCKET_CHECK(!pool_.is_free(block) && !has_owner[block], "a block under way is free or another's");
      has_owner[block] = 1;
    }
  }
  PrefixCacheCheck(cache_).run(pins);
  HOCKET_CHECK(total_promised == total_promised_, "promises differ from the rows'");
  HOCKET_CHECK(
      pool_.num_free_units() + total_owned + cache_.num_blocks() * pool_.units_per_block() == pool_.num_units(),
      "free + owned + cached units differ from the total");
}

}  // namespace hocket
