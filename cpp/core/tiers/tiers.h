// The memory tiers below the device: what is saved there, what comes back, and the moves in between.
//
//   device --save--> host --store--> disk        write-behind: every block that completes
//   device <--load-- host <--fetch-- disk        for a request that waits, or a session that is expected
//                         <--fetch-- a peer's host, for the same
//
// A block is saved as soon as it is complete: its units are read before the next step writes, so that eviction from the
// device neither waits nor loses it. What comes back joins the prefix cache, as if it had been computed, and whoever
// waits for it is admitted with a cached prefix like any other.
//
// A restore is a set of moves of one direction for one owner: a fetch from disk makes a later load possible. The
// scheduler decides; it hears of the end by complete(). A fetch may fail: then the disk, or the peer, has lost the
// block. What peers have is hearsay, told by note_on_peer(), and so is how fast they give it.
//
// Step loads are another way up, for one request and one step: into the request's own blocks, while the step runs. They
// have no restore, since nobody waits for them but the step.
//
// Plans carry the moves out (tier_moves.h); nothing here waits. At most kMaxStores blocks are on their way to disk.
//
// Invariants: see check_invariants(). Thread safety: none. No allocation on save() and in plans that save.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/block_key.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/tier_moves.h"
#include "memory/device_memory.h"
#include "tiers/tier_index.h"

namespace hocket {

using RestoreId = int32_t;  // one restore under way

// Who waits for a restore: a request's slot or a session. The serial number tells whether it is still the same.
struct RestoreOwner {
  bool is_session = false;
  int32_t index = kNone;
  uint64_t serial = 0;
};

// What a restore does next.
enum class RestoreWay : uint8_t {
  kNone,   // nothing: what is there is all that there will be
  kLater,  // something is on its way already
  kFetch,  // from the disk to the host
  kLoad,   // from the host to the device
};

struct TierCounters {
  int64_t num_saved_blocks = 0;
  int64_t num_stored_blocks = 0;
  int64_t num_fetched_blocks = 0;
  int64_t num_lost_blocks = 0;  // that the disk should have had
  int64_t num_pulled_blocks = 0;
  int64_t num_unpulled_blocks = 0;  // that a peer should have given
  int64_t num_loaded_blocks = 0;
};

class Tiers {
 public:
  // REQUIRES: config.validate() has passed; `memory` outlives this.
  Tiers(const SchedulerConfig& config, DeviceMemory* memory, double unit_bytes);

  bool is_enabled() const { return index_.num_slots() > 0; }

  // ---- write-behind ----

  // Blocks have been computed: those that the host does not have are saved by the next plan.
  // REQUIRES: keys[i] names blocks[i]; nothing overwrites their units before the next write().
  void save(std::span<const BlockKey> keys, std::span<const BlockId> blocks);

  // Who used the blocks is done with them: the host drops the last ones first.
  void touch(std::span<const BlockKey> keys);

  // ---- restoring ----

  // How far the blocks from `begin` on are there without a gap.
  struct Extent {
    int32_t num_blocks = 0;    // on the host, on disk or at a peer
    int32_t num_on_host = 0;   // of these, the first ones, which could be loaded at once
    int32_t num_on_peers = 0;  // of these, anywhere among them
    int32_t peer = kNone;      // that has the first of those, or from which the next one is on its way
    bool is_arriving = false;  // the next one is on its way to the host
  };
  Extent find(std::span<const BlockKey> keys, int32_t begin) const;

  // Who waits is restored twice at most, a request and a session alike: from the disk, then from the host. After that
  // it takes what is there, so that a memory that drops what was just restored cannot keep it waiting.
  static constexpr int32_t kMaxRestores = 2;
  // kNone, kFetch or kLoad, of what was found, for who has had num_restores.
  static RestoreWay next_way(const Extent& found, int32_t num_restores);

  // Brings the blocks of `tokens` that the device does not have from the host. REQUIRES: the host has them; the device
  // has room.
  void load(std::string_view salt, std::span<const int32_t> tokens, std::span<const BlockKey> keys, bool is_online,
            int32_t num_promised, RestoreOwner owner);

  // Keeps the host's copies of the blocks where they are until they are loaded for a step, or released.
  // REQUIRES: the host has them / they are held.
  void hold(std::span<const BlockKey> keys);
  void release(std::span<const BlockKey> keys);
  // Brings what is held to blocks that a row of the next plan owns. REQUIRES: the row's request is in that plan.
  void load_for_step(std::span<const BlockKey> keys, std::span<const BlockId> blocks);

  // Brings the blocks from the disk or peers to the host, as far as there are slots; returns how many are under way.
  int32_t fetch(std::span<const BlockKey> keys, RestoreOwner owner);

  // ---- the disk ----

  void note_on_disk(std::span<const BlockKey> keys);
  void forget_on_disk(std::span<const BlockKey> keys);

  // ---- peers ----

  // Of what they have only as much is remembered as TierIndex says. REQUIRES: 0 <= peer < kMaxPeers; tiers are enabled.
  static constexpr int32_t kMaxPeers = 64;
  void note_on_peer(std::span<const BlockKey> keys, int32_t peer);
  // The number stands for another peer from now on, or for none.
  void forget_peer(int32_t peer);
  // It gave blocks at that rate. REQUIRES: bytes_per_second > 0.
  void note_peer_rate(int32_t peer, double bytes_per_second);
  // To pull so many blocks from the peer, behind all pulls that are under way.
  double pull_seconds(int64_t num_blocks, int32_t peer) const;

  // For a peer: the host slots of the blocks, kNone where the host has none. Copies stay there until taken back.
  void lend(std::span<const BlockKey> keys, std::vector<int32_t>* slots);
  // REQUIRES: the host's copies of the blocks are lent.
  void take_back(std::span<const BlockKey> keys);

  // ---- plans ----

  static constexpr int32_t kMaxStores = 64;  // under way; more are written at once, and more may be lost in a crash

  void reserve(TierMoves* moves) const;
  // Writes the moves decided since the last call.
  void write(TierMoves* moves);

  // Moves are done, or have failed. Appends the owners of the restores that ended by this.
  void complete(std::span<const int32_t> done, std::span<const int32_t> failed, std::vector<RestoreOwner>* owners);

  bool has_moves() const { return num_moves_ > 0; }  // decided and not reported done
  bool has_unwritten() const { return enable_disk_ && index_.has_unwritten(); }

  const TierIndex& index() const { return index_; }
  const TierCounters& counters() const { return counters_; }
  // What DeviceMemory::check_invariants() needs to know.
  std::vector<const DeviceMemory::Arrival*> arrivals() const;

  // Throws CoreError on the first broken invariant. O(everything).
  void check_invariants() const;

 private:
  struct Move {
    MoveKind kind = MoveKind::kSave;
    EntryId entry = kNone;
    RestoreId restore = kNone;
    bool is_live = false;
    int32_t peer = kNone;  // of fetches; kNone: the disk
  };
  struct Restore {
    RestoreOwner owner;
    int32_t num_moves = 0;
    bool is_live = false;
    DeviceMemory::Arrival arrival;  // of loads
    std::vector<int32_t> tokens;    // of loads
  };

  void begin_move(MoveKind kind, EntryId entry, RestoreId restore, BlockId block, int32_t peer = kNone);
  void end_fetch(const Move& move, bool is_done);
  RestoreId new_restore(RestoreOwner owner);
  void end_move(int32_t id, bool is_done, std::vector<RestoreOwner>* owners);
  void begin_stores();

  // Of a peer that has given nothing yet: TLS on one core, about.
  static constexpr double kPeerBytesPerSecond = 5e8;

  const int32_t block_size_;
  const double block_bytes_;
  const bool enable_disk_;
  DeviceMemory& memory_;
  TierIndex index_;
  std::vector<Move> moves_;
  std::vector<int32_t> free_moves_;
  std::vector<Restore> restores_;
  std::vector<RestoreId> free_restores_;
  int32_t num_moves_ = 0;
  int32_t num_stores_ = 0;
  int32_t num_pulls_ = 0;                                // fetches from peers, under way
  std::array<double, kMaxPeers> peer_bytes_per_second_;  // EWMA
  TierCounters counters_;

  // Decided, and not in a plan yet
  struct Pending {
    std::vector<int32_t> moves;
    std::vector<int32_t> units;  // [num_moves][units_per_block]
  };
  void append(const Pending& pending, TierMoves* moves) const;
  Pending pending_saves_;
  Pending pending_moves_;  // the others
};

}  // namespace hocket
