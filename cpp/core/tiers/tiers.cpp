#include "tiers/tiers.h"

#include <algorithm>

#include "base/check.h"

namespace hocket {

Tiers::Tiers(const SchedulerConfig& config, DeviceMemory* memory, double unit_bytes)
    : block_size_(config.block_size),
      block_bytes_(unit_bytes * config.units_per_block()),
      enable_disk_(config.enable_disk),
      memory_(*memory),
      index_(config.num_host_blocks) {
  peer_bytes_per_second_.fill(kPeerBytesPerSecond);
  // Every block of a step may complete and be saved, while that of the step before is not reported yet.
  const auto num_saves =
      static_cast<size_t>(config.max_num_batched_tokens / config.block_size + config.max_num_seqs + 1);
  const size_t num_moves = is_enabled() ? 2 * num_saves + kMaxStores : 0;
  moves_.reserve(num_moves);
  free_moves_.reserve(num_moves);
  for (Pending* pending : {&pending_saves_, &pending_moves_}) {
    pending->moves.reserve(num_moves);
    pending->units.reserve(num_moves * config.units_per_block());
  }
}

// ---- write-behind ----

void Tiers::save(std::span<const BlockKey> keys, std::span<const BlockId> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const EntryId found = index_.find(keys[i]);
    if (found != kNone && index_.host_slot(found) != kNone) continue;
    const EntryId entry = index_.take_slot(keys[i]);
    if (entry != kNone) begin_move(MoveKind::kSave, entry, kNone, blocks[i]);
  }
}

void Tiers::touch(std::span<const BlockKey> keys) {
  for (size_t i = keys.size(); i-- > 0;) {
    if (const EntryId entry = index_.find(keys[i]); entry != kNone) index_.touch(entry);
  }
}

// ---- restoring ----

Tiers::Extent Tiers::find(std::span<const BlockKey> keys, int32_t begin) const {
  Extent extent;
  for (size_t i = static_cast<size_t>(begin); i < keys.size(); ++i) {
    const EntryId entry = index_.find(keys[i]);
    if (entry == kNone) break;
    const bool is_on_host = index_.is_on_host(entry);
    if (!is_on_host && index_.is_arriving(entry)) {
      extent.is_arriving = true;
      if (extent.peer == kNone) extent.peer = index_.peer(entry);
      break;
    }
    if (!is_on_host && !index_.is_on_disk(entry)) {
      if (index_.peer(entry) == kNone) break;
      if (extent.peer == kNone) extent.peer = index_.peer(entry);
      ++extent.num_on_peers;
    }
    if (is_on_host && extent.num_on_host == extent.num_blocks) ++extent.num_on_host;
    ++extent.num_blocks;
  }
  return extent;
}

void Tiers::load(std::string_view salt, std::span<const int32_t> tokens, std::span<const BlockKey> keys, bool is_online,
                 int32_t num_promised, RestoreOwner owner) {
  const RestoreId id = new_restore(owner);
  Restore& restore = restores_[id];
  restore.tokens.assign(tokens.begin(), tokens.end());
  const int32_t num_cached = memory_.begin_arrival(salt, tokens, is_online, num_promised, &restore.arrival);
  for (size_t i = 0; i < restore.arrival.blocks.size(); ++i) {
    const EntryId entry = index_.find(keys[num_cached + i]);
    HOCKET_CHECK(entry != kNone, "a block is loaded that the host does not have");
    index_.begin_read(entry);
    begin_move(MoveKind::kLoad, entry, id, restore.arrival.blocks[i]);
  }
  HOCKET_CHECK(restore.num_moves > 0, "nothing is left to load");
}

void Tiers::hold(std::span<const BlockKey> keys) {
  for (const BlockKey& key : keys) {
    const EntryId entry = index_.find(key);
    HOCKET_CHECK(entry != kNone, "a block is held that the host does not have");
    index_.begin_read(entry);
  }
}

RestoreWay Tiers::next_way(const Extent& found, int32_t num_restores) {
  if (num_restores >= kMaxRestores || found.num_blocks == 0) return RestoreWay::kNone;
  if (num_restores == 0 && found.num_on_host < found.num_blocks) return RestoreWay::kFetch;
  return found.num_on_host > 0 ? RestoreWay::kLoad : RestoreWay::kNone;
}

void Tiers::release(std::span<const BlockKey> keys) {
  for (const BlockKey& key : keys) index_.end_read(index_.find(key));
}

void Tiers::load_for_step(std::span<const BlockKey> keys, std::span<const BlockId> blocks) {
  for (size_t i = 0; i < keys.size(); ++i) begin_move(MoveKind::kStepLoad, index_.find(keys[i]), kNone, blocks[i]);
}

int32_t Tiers::fetch(std::span<const BlockKey> keys, RestoreOwner owner) {
  RestoreId id = kNone;
  for (const BlockKey& key : keys) {
    const EntryId found = index_.find(key);
    if (found == kNone) break;
    if (index_.host_slot(found) != kNone) continue;
    const EntryId entry = index_.take_slot(key);
    if (entry == kNone) break;
    if (id == kNone) id = new_restore(owner);
    begin_move(MoveKind::kFetch, entry, id, kNone, index_.is_on_disk(entry) ? kNone : index_.peer(entry));
  }
  return id == kNone ? 0 : restores_[id].num_moves;
}

// ---- the disk ----

void Tiers::note_on_disk(std::span<const BlockKey> keys) {
  for (const BlockKey& key : keys) index_.set_on_disk(key);
}

void Tiers::forget_on_disk(std::span<const BlockKey> keys) {
  for (const BlockKey& key : keys) index_.clear_on_disk(key);
}

// ---- peers ----

void Tiers::note_on_peer(std::span<const BlockKey> keys, int32_t peer) {
  for (size_t i = keys.size(); i-- > 0;) index_.set_on_peer(keys[i], peer);  // what is bounded keeps the beginning
}

void Tiers::forget_peer(int32_t peer) {
  index_.clear_peer(peer);
  peer_bytes_per_second_[peer] = kPeerBytesPerSecond;
}

void Tiers::note_peer_rate(int32_t peer, double bytes_per_second) {
  constexpr double kShare = 0.3;  // of the newest in the mean
  double& mean = peer_bytes_per_second_[peer];
  mean += kShare * (bytes_per_second - mean);
}

double Tiers::pull_seconds(int64_t num_blocks, int32_t peer) const {
  return static_cast<double>(num_blocks + num_pulls_) * block_bytes_ / peer_bytes_per_second_[peer];
}

void Tiers::lend(std::span<const BlockKey> keys, std::vector<int32_t>* slots) {
  for (const BlockKey& key : keys) {
    const EntryId entry = index_.find(key);
    const bool is_there = entry != kNone && index_.is_on_host(entry);
    if (is_there) index_.begin_read(entry);
    slots->push_back(is_there ? index_.host_slot(entry) : kNone);
  }
}

void Tiers::take_back(std::span<const BlockKey> keys) { release(keys); }

void Tiers::begin_stores() {
  while (num_stores_ < kMaxStores) {
    const EntryId entry = index_.take_unwritten();
    if (entry == kNone) return;
    if (index_.is_on_disk(entry)) continue;
    index_.begin_read(entry);
    begin_move(MoveKind::kStore, entry, kNone, kNone);
    ++num_stores_;
  }
}

// ---- plans ----

RestoreId Tiers::new_restore(RestoreOwner owner) {
  if (free_restores_.empty()) {
    free_restores_.push_back(static_cast<RestoreId>(restores_.size()));
    restores_.emplace_back();
  }
  const RestoreId id = free_restores_.back();
  free_restores_.pop_back();
  restores_[id].owner = owner;
  restores_[id].num_moves = 0;
  restores_[id].is_live = true;
  return id;
}

void Tiers::begin_move(MoveKind kind, EntryId entry, RestoreId restore, BlockId block, int32_t peer) {
  if (free_moves_.empty()) {
    free_moves_.push_back(static_cast<int32_t>(moves_.size()));
    moves_.emplace_back();
  }
  const int32_t id = free_moves_.back();
  free_moves_.pop_back();
  moves_[id] = {kind, entry, restore, true, peer};
  num_pulls_ += peer != kNone;
  if (restore != kNone) ++restores_[restore].num_moves;
  ++num_moves_;
  Pending& pending = kind == MoveKind::kSave ? pending_saves_ : pending_moves_;
  pending.moves.push_back(id);
  if (block == kNone) {
    pending.units.insert(pending.units.end(), memory_.pool().units_per_block(), kNone);
  } else {
    const auto units = memory_.pool().units(block);
    pending.units.insert(pending.units.end(), units.begin(), units.end());
  }
}

void Tiers::reserve(TierMoves* moves) const {
  for (auto* per_move : {&moves->ids, &moves->kinds, &moves->slots, &moves->peers}) {
    per_move->reserve(pending_moves_.moves.capacity());
  }
  moves->keys.reserve(pending_moves_.moves.capacity());
  moves->units.reserve(pending_moves_.units.capacity());
}

void Tiers::write(TierMoves* moves) {
  if (enable_disk_) begin_stores();
  for (auto* per_move : {&moves->ids, &moves->kinds, &moves->slots, &moves->units, &moves->peers}) per_move->clear();
  moves->keys.clear();
  moves->num_step_loads = 0;
  moves->num_saves = static_cast<int32_t>(pending_saves_.moves.size());
  for (Pending* pending : {&pending_saves_, &pending_moves_}) {
    append(*pending, moves);
    pending->moves.clear();
    pending->units.clear();
  }
}

void Tiers::append(const Pending& pending, TierMoves* moves) const {
  moves->ids.insert(moves->ids.end(), pending.moves.begin(), pending.moves.end());
  moves->units.insert(moves->units.end(), pending.units.begin(), pending.units.end());
  for (const int32_t id : pending.moves) {
    const Move& move = moves_[id];
    moves->num_step_loads += move.kind == MoveKind::kStepLoad;
    moves->kinds.push_back(static_cast<int32_t>(move.kind));
    moves->slots.push_back(index_.host_slot(move.entry));
    moves->peers.push_back(move.peer);
    moves->keys.push_back(index_.key(move.entry));
  }
}

void Tiers::complete(std::span<const int32_t> done, std::span<const int32_t> failed,
                     std::vector<RestoreOwner>* owners) {
  for (const int32_t id : done) end_move(id, true, owners);
  for (const int32_t id : failed) end_move(id, false, owners);
}

void Tiers::end_move(int32_t id, bool is_done, std::vector<RestoreOwner>* owners) {
  HOCKET_CHECK(id >= 0 && id < std::ssize(moves_) && moves_[id].is_live, "a move ended that was not under way");
  const Move move = moves_[id];
  moves_[id].is_live = false;
  free_moves_.push_back(id);
  --num_moves_;
  switch (move.kind) {
    case MoveKind::kSave:
      HOCKET_CHECK(is_done, "a save failed");
      index_.arrive(move.entry);
      if (enable_disk_) index_.queue_write(move.entry);
      ++counters_.num_saved_blocks;
      break;
    case MoveKind::kLoad:
    case MoveKind::kStepLoad:
      HOCKET_CHECK(is_done, "a load failed");
      index_.end_read(move.entry);
      ++counters_.num_loaded_blocks;
      break;
    case MoveKind::kStore:
      --num_stores_;
      index_.end_read(move.entry);
      if (is_done) index_.set_on_disk(index_.key(move.entry));
      counters_.num_stored_blocks += is_done;
      break;
    case MoveKind::kFetch:
      end_fetch(move, is_done);
      break;
  }
  if (move.restore == kNone) return;
  Restore& restore = restores_[move.restore];
  if (--restore.num_moves > 0) return;
  if (restore.arrival.node != kNone) memory_.end_arrival(restore.tokens, &restore.arrival);
  restore.is_live = false;
  free_restores_.push_back(move.restore);
  owners->push_back(restore.owner);
}

// What a peer has given is our own from now on, and what it has not, it does not have.
void Tiers::end_fetch(const Move& move, bool is_done) {
  const bool is_pull = move.peer != kNone;
  const BlockKey key = index_.key(move.entry);
  num_pulls_ -= is_pull;
  if (is_done) {
    index_.arrive(move.entry);
    if (is_pull && enable_disk_) index_.queue_write(move.entry);
  } else {
    index_.fail_arrival(move.entry);
    if (!is_pull) index_.clear_on_disk(key);
  }
  if (is_pull) {
    index_.clear_on_peer(key);
    ++(is_done ? counters_.num_pulled_blocks : counters_.num_unpulled_blocks);
  } else {
    ++(is_done ? counters_.num_fetched_blocks : counters_.num_lost_blocks);
  }
}

std::vector<const DeviceMemory::Arrival*> Tiers::arrivals() const {
  std::vector<const DeviceMemory::Arrival*> arrivals;
  for (const Restore& restore : restores_) {
    if (restore.is_live && restore.arrival.node != kNone) arrivals.push_back(&restore.arrival);
  }
  return arrivals;
}

void Tiers::check_invariants() const {
  index_.check_invariants();
  int32_t num_moves = 0, num_stores = 0, num_pulls = 0;
  std::vector<int32_t> num_of_restore(restores_.size(), 0);
  for (const Move& move : moves_) {
    if (!move.is_live) continue;
    ++num_moves;
    num_stores += move.kind == MoveKind::kStore;
    num_pulls += move.peer != kNone;
    const bool is_coming = move.kind == MoveKind::kSave || move.kind == MoveKind::kFetch;
    HOCKET_CHECK(is_coming ? index_.is_arriving(move.entry) : index_.is_on_host(move.entry),
                 "a move's host copy is in another state");
    if (move.restore != kNone) ++num_of_restore[move.restore];
  }
  HOCKET_CHECK(num_moves == num_moves_ && num_stores == num_stores_ && num_pulls == num_pulls_, "moves are miscounted");
  for (size_t i = 0; i < restores_.size(); ++i) {
    HOCKET_CHECK(num_of_restore[i] == (restores_[i].is_live ? restores_[i].num_moves : 0), "a restore is miscounted");
    HOCKET_CHECK(!restores_[i].is_live || restores_[i].num_moves > 0, "a restore has ended and is not known so");
  }
}

}  // namespace hocket
