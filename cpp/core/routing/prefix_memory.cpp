#include "routing/prefix_memory.h"

#include <algorithm>

namespace hocket {

namespace {

constexpr int kBits = 64;

void set_bit(std::vector<uint64_t>& bits, NodeId node) {
  const size_t word = static_cast<size_t>(node) / kBits;
  if (word >= bits.size()) bits.resize(word + 1, 0);
  bits[word] |= uint64_t{1} << (node % kBits);
}

bool has_bit(const std::vector<uint64_t>& bits, NodeId node) {
  const size_t word = static_cast<size_t>(node) / kBits;
  return word < bits.size() && (bits[word] >> (node % kBits) & 1);
}

}  // namespace

const PrefixMemory::Holder* PrefixMemory::Entry::find(NodeId node) const {
  const auto found = std::ranges::find(named, node, &Holder::node);
  return found == named.end() ? nullptr : &*found;
}

bool PrefixMemory::Entry::is_held_by(NodeId node) const {
  return everyone ? has_bit(*everyone, node) : find(node) != nullptr;
}

void PrefixMemory::lookup(std::span<const uint64_t> keys, std::vector<const Entry*>& found) const {
  found.clear();
  for (const uint64_t key : keys) {
    const Entry* entry = entries_.find(key);
    if (entry == nullptr) return;
    found.push_back(entry);
  }
}

void PrefixMemory::note(std::span<const uint64_t> keys, NodeId node, double clock) {
  if (max_entries_ == 0) return;
  // From the end: what a chain begins with is used last, and so outlives what follows it.
  const size_t num_kept = std::min(keys.size(), max_entries_);
  for (size_t i = num_kept; i-- > 0;) {
    add(entries_.touch(keys[i]), node, clock);
    if (entries_.size() > max_entries_) entries_.erase(entries_.oldest_key());
  }
}

void PrefixMemory::add(Entry& entry, NodeId node, double clock) {
  auto slot = std::ranges::find(entry.named, node, &Holder::node);
  if (slot == entry.named.end()) slot = std::ranges::find(entry.named, kNoNode, &Holder::node);
  if (slot == entry.named.end()) {
    if (!entry.everyone) {
      entry.everyone = std::make_unique<std::vector<uint64_t>>();
      for (const Holder& holder : entry.named) set_bit(*entry.everyone, holder.node);
    }
    std::rotate(entry.named.begin(), entry.named.begin() + 1,
                entry.named.end());  // the one named longest ago makes room
    slot = entry.named.end() - 1;
  }
  *slot = {node, clock};
  if (entry.everyone) set_bit(*entry.everyone, node);
}

void PrefixMemory::forget(NodeId node) {
  std::vector<uint64_t> unheld;
  entries_.for_each([&](uint64_t key, Entry& entry) {
    auto& named = entry.named;
    // Not std::ranges, of which Clang 14 makes no subrange; it builds the fuzzer.
    const auto gone =
        std::remove_if(named.begin(), named.end(), [node](const auto& held) { return held.node == node; });
    std::fill(gone, named.end(), Holder{});
    if (entry.everyone && has_bit(*entry.everyone, node)) {
      (*entry.everyone)[static_cast<size_t>(node) / kBits] &= ~(uint64_t{1} << (node % kBits));
    }
    if (entry.named.front().node == kNoNode) unheld.push_back(key);
  });
  for (const uint64_t key : unheld) entries_.erase(key);
}

}  // namespace hocket
