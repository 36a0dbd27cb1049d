#include "tiers/tier_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace hocket {

TierIndex::TierIndex(int32_t num_host_slots)
    : buckets_(std::bit_ceil(static_cast<size_t>(num_host_slots) * 2 + 1), kNone),
      entry_of_slot_(num_host_slots, kNone) {
  entries_.reserve(num_host_slots);
  free_entries_.reserve(num_host_slots);
  free_slots_.resize(num_host_slots);
  for (int32_t i = 0; i < num_host_slots; ++i) free_slots_[i] = num_host_slots - 1 - i;
}

EntryId TierIndex::find(const BlockKey& key) const {
  EntryId entry = buckets_[bucket_of(key)];
  while (entry != kNone && entries_[entry].key != key) entry = entries_[entry].next_in_bucket;
  return entry;
}

EntryId TierIndex::find_or_add(const BlockKey& key) {
  if (const EntryId found = find(key); found != kNone) return found;
  EntryId entry;
  if (free_entries_.empty()) {
    if (2 * (entries_.size() + 1) > buckets_.size()) grow();
    entry = static_cast<EntryId>(entries_.size());
    entries_.emplace_back();
    free_entries_.reserve(entries_.size());
  } else {
    entry = free_entries_.back();
    free_entries_.pop_back();
  }
  Entry& e = entries_[entry];
  e = Entry{};
  e.key = key;
  e.is_live = true;
  EntryId& head = buckets_[bucket_of(key)];
  e.next_in_bucket = head;
  head = entry;
  return entry;
}

void TierIndex::grow() {
  buckets_.assign(2 * buckets_.size(), kNone);
  for (EntryId id = 0; id < static_cast<EntryId>(entries_.size()); ++id) {
    if (!entries_[id].is_live) continue;
    EntryId& head = buckets_[bucket_of(entries_[id].key)];
    entries_[id].next_in_bucket = head;
    head = id;
  }
}

void TierIndex::remove_if_empty(EntryId entry) {
  Entry& e = entries_[entry];
  if (e.host_slot != kNone || e.is_on_disk || e.peer != kNone) return;
  EntryId* link = &buckets_[bucket_of(e.key)];
  while (*link != entry) link = &entries_[*link].next_in_bucket;
  *link = e.next_in_bucket;
  e.is_live = false;
  free_entries_.push_back(entry);
}

EntryId TierIndex::take_slot(const BlockKey& key) {
  if (free_slots_.empty()) {
    if (idle_.oldest == kNone) return kNone;
    drop_copy(idle_.oldest);
  }
  const EntryId entry = find_or_add(key);
  Entry& e = entries_[entry];
  HOCKET_CHECK(e.host_slot == kNone, "a block has a host slot already");
  e.host_slot = free_slots_.back();
  free_slots_.pop_back();
  entry_of_slot_[e.host_slot] = entry;
  e.is_arriving = true;
  return entry;
}

void TierIndex::arrive(EntryId entry) {
  HOCKET_CHECK(entries_[entry].is_live && entries_[entry].is_arriving, "what arrived was not under way");
  entries_[entry].is_arriving = false;
  append(&idle_, entry);
}

void TierIndex::fail_arrival(EntryId entry) {
  Entry& e = entries_[entry];
  HOCKET_CHECK(e.is_live && e.is_arriving, "what failed to arrive was not under way");
  e.is_arriving = false;
  entry_of_slot_[e.host_slot] = kNone;
  free_slots_.push_back(e.host_slot);
  e.host_slot = kNone;
  remove_if_empty(entry);
}

void TierIndex::drop_copy(EntryId entry) {
  Entry& e = entries_[entry];
  unlink(&idle_, entry);
  if (e.is_unwritten) unlink(&unwritten_, entry);
  e.is_unwritten = false;
  entry_of_slot_[e.host_slot] = kNone;
  free_slots_.push_back(e.host_slot);
  e.host_slot = kNone;
  remove_if_empty(entry);
}

void TierIndex::begin_read(EntryId entry) {
  HOCKET_CHECK(is_on_host(entry), "a copy is read that is not there");
  if (entries_[entry].num_readers++ == 0) unlink(&idle_, entry);
}

void TierIndex::end_read(EntryId entry) {
  HOCKET_CHECK(entries_[entry].num_readers > 0, "a copy is no longer read that nobody reads");
  if (--entries_[entry].num_readers == 0) append(&idle_, entry);
}

void TierIndex::touch(EntryId entry) {
  const Entry& e = entries_[entry];
  if (!is_on_host(entry) || e.num_readers > 0 || idle_.newest == entry) return;
  unlink(&idle_, entry);
  append(&idle_, entry);
}

void TierIndex::set_on_disk(const BlockKey& key) { entries_[find_or_add(key)].is_on_disk = true; }

void TierIndex::clear_on_disk(const BlockKey& key) {
  const EntryId entry = find(key);
  if (entry == kNone || !entries_[entry].is_on_disk) return;
  entries_[entry].is_on_disk = false;
  remove_if_empty(entry);
}

void TierIndex::set_on_peer(const BlockKey& key, int32_t peer) {
  HOCKET_CHECK(peer >= 0, "a peer has no number");
  const EntryId entry = find_or_add(key);
  Entry& e = entries_[entry];
  if (e.peer != kNone) {
    unlink(&remote_, entry);
  } else if (++num_on_peers_ > max_on_peers()) {
    drop_peer(remote_.oldest);
  }
  e.peer = peer;
  append(&remote_, entry);
}

void TierIndex::clear_on_peer(const BlockKey& key) {
  const EntryId entry = find(key);
  if (entry != kNone && entries_[entry].peer != kNone) drop_peer(entry);
}

void TierIndex::clear_peer(int32_t peer) {
  for (EntryId entry = remote_.oldest; entry != kNone;) {
    const EntryId newer = entries_[entry].remote.newer;
    if (entries_[entry].peer == peer) drop_peer(entry);
    entry = newer;
  }
}

void TierIndex::drop_peer(EntryId entry) {
  unlink(&remote_, entry);
  entries_[entry].peer = kNone;
  --num_on_peers_;
  remove_if_empty(entry);
}

void TierIndex::queue_write(EntryId entry) {
  Entry& e = entries_[entry];
  HOCKET_CHECK(is_on_host(entry), "what is to be written is not on the host");
  if (e.is_unwritten || e.is_on_disk) return;
  e.is_unwritten = true;
  append(&unwritten_, entry);
}

EntryId TierIndex::take_unwritten() {
  const EntryId entry = unwritten_.oldest;
  if (entry == kNone) return kNone;
  unlink(&unwritten_, entry);
  entries_[entry].is_unwritten = false;
  return entry;
}

void TierIndex::append(List* list, EntryId entry) {
  Link& link = entries_[entry].*(list->link);
  link.older = list->newest;
  link.newer = kNone;
  (list->newest == kNone ? list->oldest : (entries_[list->newest].*(list->link)).newer) = entry;
  list->newest = entry;
}

void TierIndex::unlink(List* list, EntryId entry) {
  const Link link = entries_[entry].*(list->link);
  (link.older == kNone ? list->oldest : (entries_[link.older].*(list->link)).newer) = link.newer;
  (link.newer == kNone ? list->newest : (entries_[link.newer].*(list->link)).older) = link.older;
}

int32_t TierIndex::count(const List& list) const {
  int32_t num = 0;
  EntryId last = kNone;
  for (EntryId entry = list.oldest; entry != kNone; last = entry, entry = (entries_[entry].*(list.link)).newer, ++num) {
    HOCKET_CHECK((entries_[entry].*(list.link)).older == last, "a list's links differ");
  }
  HOCKET_CHECK(last == list.newest, "a list's end is wrong");
  return num;
}

void TierIndex::check_invariants() const {
  int32_t num_taken = 0, num_idle = 0, num_unwritten = 0, num_remote = 0, num_live = 0;
  for (EntryId id = 0; id < static_cast<EntryId>(entries_.size()); ++id) {
    const Entry& e = entries_[id];
    if (!e.is_live) continue;
    ++num_live;
    HOCKET_CHECK(find(e.key) == id, "an entry is not found by its key");
    HOCKET_CHECK(e.host_slot != kNone || e.is_on_disk || e.peer != kNone, "an entry is of no use");
    HOCKET_CHECK(e.host_slot == kNone || entry_of_slot_[e.host_slot] == id, "a slot is another entry's");
    HOCKET_CHECK(e.host_slot != kNone || (!e.is_arriving && !e.is_unwritten && e.num_readers == 0),
                 "an entry without a copy is in use");
    HOCKET_CHECK(!e.is_arriving || (e.num_readers == 0 && !e.is_unwritten), "a copy is used before it is there");
    num_taken += e.host_slot != kNone;
    num_idle += is_on_host(id) && e.num_readers == 0;
    num_unwritten += e.is_unwritten;
    num_remote += e.peer != kNone;
  }
  HOCKET_CHECK(num_live + free_entries_.size() == entries_.size(), "entries are lost");
  HOCKET_CHECK(num_taken + num_free_slots() == num_slots(), "free + taken slots differ from the total");
  HOCKET_CHECK(count(idle_) == num_idle && count(unwritten_) == num_unwritten, "a list differs from its entries");
  HOCKET_CHECK(count(remote_) == num_remote && num_remote == num_on_peers_ && num_remote <= max_on_peers(),
               "what peers have is miscounted");
}

}  // namespace hocket
