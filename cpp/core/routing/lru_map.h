// A hash map that knows which of its keys was used longest ago. Its owner says when something has to go.
//
// Keys are hashes already: their bits are taken as they are, so what an adversary chooses must be keyed before it is a
// key here. Entries lie in one array and are linked by index; looking one up is one or two cache lines.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace hocket {

template <typename Value>
class LruMap {
 public:
  LruMap() : index_(kSmallest, kNothing) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Null if it is not there. Does not count as use. Valid until the next touch().
  const Value* find(uint64_t key) const {
    const int32_t slot = index_[place(key)];
    return slot == kNothing ? nullptr : &slots_[slot].value;
  }
  Value* find(uint64_t key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

  // Found or made, and now the most recently used.
  Value& touch(uint64_t key) {
    size_t at = place(key);
    int32_t slot = index_[at];
    if (slot != kNothing) {
      unlink(slot);
    } else {
      if (2 * (size_ + 1) > index_.size()) {
        grow();
        at = place(key);
      }
      slot = take_slot(key);
      index_[at] = slot;
      ++size_;
    }
    link(slot);
    return slots_[slot].value;
  }

  bool erase(uint64_t key) {
    const size_t at = place(key);
    const int32_t slot = index_[at];
    if (slot == kNothing) return false;
    unlink(slot);
    slots_[slot].value = Value();
    slots_[slot].older = free_;
    free_ = slot;
    --size_;
    close_gap(at);
    return true;
  }

  // REQUIRES: !empty().
  uint64_t oldest_key() const { return slots_[oldest_].key; }
  const Value& oldest() const { return slots_[oldest_].value; }

  // From the one used longest ago. visit(key, value) must not change the map.
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (int32_t slot = oldest_; slot != kNothing; slot = slots_[slot].newer) {
      visit(slots_[slot].key, slots_[slot].value);
    }
  }

 private:
  static constexpr int32_t kNothing = -1;
  static constexpr size_t kSmallest = 16;  // a power of two, as every size of the index

  struct Slot {
    uint64_t key = 0;
    int32_t newer = kNothing;
    int32_t older = kNothing;  // of a free slot: the next free one
    Value value = {};
  };

  size_t home(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ULL >> 20) & (index_.size() - 1); }

  // Of the key, or the empty place where it would go.
  size_t place(uint64_t key) const {
    size_t at = home(key);
    while (index_[at] != kNothing && slots_[index_[at]].key != key) at = (at + 1) & (index_.size() - 1);
    return at;
  }

  int32_t take_slot(uint64_t key) {
    int32_t slot = free_;
    if (slot == kNothing) {
      slot = static_cast<int32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      free_ = slots_[slot].older;
    }
    slots_[slot].key = key;
    return slot;
  }

  void link(int32_t slot) {
    slots_[slot].older = newest_;
    slots_[slot].newer = kNothing;
    (newest_ == kNothing ? oldest_ : slots_[newest_].newer) = slot;
    newest_ = slot;
  }

  void unlink(int32_t slot) {
    const int32_t newer = slots_[slot].newer, older = slots_[slot].older;
    (newer == kNothing ? newest_ : slots_[newer].older) = older;
    (older == kNothing ? oldest_ : slots_[older].newer) = newer;
  }

  void grow() {
    index_.assign(2 * index_.size(), kNothing);
    for (int32_t slot = oldest_; slot != kNothing; slot = slots_[slot].newer) index_[place(slots_[slot].key)] = slot;
  }

  // What was pushed past `gap` by a collision moves back, so that a search never meets a hole before its key.
  void close_gap(size_t gap) {
    const size_t mask = index_.size() - 1;
    index_[gap] = kNothing;
    for (size_t at = (gap + 1) & mask; index_[at] != kNothing; at = (at + 1) & mask) {
      const size_t wanted = home(slots_[index_[at]].key);
      if (((at - wanted) & mask) >= ((at - gap) & mask)) {
        index_[gap] = std::exchange(index_[at], kNothing);
        gap = at;
      }
    }
  }

  std::vector<Slot> slots_;
  std::vector<int32_t> index_;
  size_t size_ = 0;
  int32_t newest_ = kNothing;
  int32_t oldest_ = kNothing;
  int32_t free_ = kNothing;
};

}  // namespace hocket
