// A column by slot that one part of the scheduler keeps to itself, beside RequestTable.
//
// Every request begins with T(): what an earlier request of that slot left is never seen, and nobody has to say that
// one came or went.
//
// Thread safety: none. Allocation: when a slot is asked for that no request had before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/ids.h"
#include "requests/request.h"

namespace hocket {

template <typename T>
class PerRequest {
 public:
  // `requests` outlives this.
  explicit PerRequest(const RequestTable* requests) : requests_(*requests) {}

  // REQUIRES: `slot` is a live request's.
  T& operator[](Slot slot) {
    const auto index = static_cast<size_t>(slot);
    if (index >= entries_.size()) entries_.resize(requests_.id.size());
    Entry& entry = entries_[index];
    if (entry.sequence != requests_.sequence[index]) entry = {requests_.sequence[index], T()};
    return entry.value;
  }

  T operator[](Slot slot) const {
    const auto index = static_cast<size_t>(slot);
    const bool is_there = index < entries_.size() && entries_[index].sequence == requests_.sequence[index];
    return is_there ? entries_[index].value : T();
  }

 private:
  struct Entry {
    uint64_t sequence = std::numeric_limits<uint64_t>::max();
    T value = T();
  };

  const RequestTable& requests_;
  std::vector<Entry> entries_;
};

}  // namespace hocket
