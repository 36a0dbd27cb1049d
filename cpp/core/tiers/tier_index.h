// Which blocks the host, the disk and peers hold, found by their keys (block_key.h), and the slots of the host's
// memory.
//
//   entry   a key, the host slot it has or kNone, whether the disk has it, and a peer that does or kNone; it lives
//           while any does
//   slot    room for one block on the host
//
// A host copy is arriving (its slot is taken, its content is not there yet), then there. One that is there, and that
// nobody reads, may be dropped for another: the least recently used first. Whoever moves a copy elsewhere reads it
// until the move is reported done. What waits to be written to disk stands in a queue of its own, oldest first; being
// dropped takes it out: eviction never waits. What peers have is hearsay: of that the index remembers a bounded number
// of blocks, and forgets what it heard longest ago.
//
// Invariants: free + taken slots = all; the list of droppable copies holds exactly those that are there and unread.
// Cost: every call is O(1). Thread safety: none. Allocation: when the disk has more blocks than ever before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/block_key.h"
#include "base/ids.h"

namespace hocket {

using EntryId = int32_t;  // one entry of a TierIndex

class TierIndex {
 public:
  // REQUIRES: num_host_slots >= 0.
  explicit TierIndex(int32_t num_host_slots);

  // The entry of that key, or kNone.
  EntryId find(const BlockKey& key) const;

  // Gives the key a host slot, dropping another copy if need be, and marks the copy as arriving. kNone if every slot is
  // arriving or being read. REQUIRES: the key has no host slot.
  EntryId take_slot(const BlockKey& key);
  // The copy has arrived; or it has not, and the slot is free again. REQUIRES: the entry's copy is arriving.
  void arrive(EntryId entry);
  void fail_arrival(EntryId entry);

  // The copy may not be dropped until as many end_read(). REQUIRES: is_on_host(entry).
  void begin_read(EntryId entry);
  void end_read(EntryId entry);
  // The copy counts as just used.
  void touch(EntryId entry);

  // Notes what the disk has, also without an entry; and what it has no longer.
  void set_on_disk(const BlockKey& key);
  void clear_on_disk(const BlockKey& key);

  // The same of a peer; of one block the last one counts. clear_peer(): of all that it has, O(entries).
  // REQUIRES: peer >= 0.
  void set_on_peer(const BlockKey& key, int32_t peer);
  void clear_on_peer(const BlockKey& key);
  void clear_peer(int32_t peer);

  // The oldest copy that waits to be written to disk, taken out of the queue, or kNone.
  EntryId take_unwritten();
  void queue_write(EntryId entry);
  bool has_unwritten() const { return unwritten_.oldest != kNone; }

  const BlockKey& key(EntryId entry) const { return entries_[entry].key; }
  int32_t host_slot(EntryId entry) const { return entries_[entry].host_slot; }
  bool is_on_host(EntryId entry) const { return entries_[entry].host_slot != kNone && !entries_[entry].is_arriving; }
  bool is_arriving(EntryId entry) const { return entries_[entry].is_arriving; }
  bool is_on_disk(EntryId entry) const { return entries_[entry].is_on_disk; }
  int32_t peer(EntryId entry) const { return entries_[entry].peer; }
  int32_t num_on_peers() const { return num_on_peers_; }
  int32_t max_on_peers() const { return std::max(kLeastOnPeers, 4 * num_slots()); }
  int32_t num_slots() const { return static_cast<int32_t>(entry_of_slot_.size()); }
  int32_t num_free_slots() const { return static_cast<int32_t>(free_slots_.size()); }

  // Throws CoreError on the first broken invariant. O(entries).
  void check_invariants() const;

 private:
  struct Link {
    EntryId older = kNone;
    EntryId newer = kNone;
  };
  struct Entry {
    BlockKey key;
    int32_t host_slot = kNone;
    int32_t num_readers = 0;
    int32_t peer = kNone;
    Link idle;       // in idle_, if it is there and nobody reads it
    Link unwritten;  // in unwritten_, if is_unwritten
    Link remote;     // in remote_, if a peer has it
    EntryId next_in_bucket = kNone;
    bool is_arriving = false;
    bool is_on_disk = false;
    bool is_unwritten = false;
    bool is_live = false;
  };
  struct List {
    Link Entry::* link;
    EntryId oldest = kNone;
    EntryId newest = kNone;
  };

  static constexpr int32_t kLeastOnPeers = 4096;  // that are remembered where the host is small

  EntryId find_or_add(const BlockKey& key);
  void drop_peer(EntryId entry);
  void remove_if_empty(EntryId entry);
  void drop_copy(EntryId entry);
  void grow();
  size_t bucket_of(const BlockKey& key) const { return key.low & (buckets_.size() - 1); }
  void append(List* list, EntryId entry);
  void unlink(List* list, EntryId entry);
  int32_t count(const List& list) const;

  std::vector<Entry> entries_;
  std::vector<EntryId> free_entries_;
  std::vector<EntryId> buckets_;  // hash table: heads of chains
  std::vector<EntryId> entry_of_slot_;
  std::vector<int32_t> free_slots_;
  List idle_{&Entry::idle};
  List unwritten_{&Entry::unwritten};
  List remote_{&Entry::remote};
  int32_t num_on_peers_ = 0;
};

}  // namespace hocket
