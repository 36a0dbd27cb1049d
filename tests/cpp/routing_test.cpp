// What routing is made of, each against the plainest way to do the same.

#include <list>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "routing/lru_map.h"
#include "routing/route.h"
#include "testing.h"

namespace hocket {
namespace {

TEST(routing, lru_map_is_a_map_with_a_list) {
  std::mt19937_64 random(1);
  LruMap<int> map;
  std::map<uint64_t, int> values;
  std::list<uint64_t> order;  // the oldest first
  for (int i = 0; i < 20000; ++i) {
    const uint64_t key = random() % 7 == 0 ? random() % 4 << 40 : random() % 300;
    if (random() % 3 == 0) {
      CHECK_EQ(map.erase(key), values.erase(key) == 1);
      order.remove(key);
    } else {
      map.touch(key) = i;
      values[key] = i;
      order.remove(key);
      order.push_back(key);
    }
    CHECK_EQ(map.size(), values.size());
    if (!order.empty()) CHECK_EQ(map.oldest_key(), order.front());
    const auto found = values.find(random() % 300);
    if (found != values.end()) CHECK_EQ(*map.find(found->first), found->second);
  }
  std::vector<uint64_t> seen;
  map.for_each([&](uint64_t key, int value) {
    CHECK_EQ(value, values[key]);
    seen.push_back(key);
  });
  CHECK_EQ(seen, std::vector<uint64_t>(order.begin(), order.end()));
}

TEST(routing, least_tree_finds_what_sorting_finds) {
  std::mt19937_64 random(2);
  for (size_t size : {1u, 2u, 3u, 17u, 64u, 100u}) {
    LeastTree tree;
    tree.resize(size);
    std::vector<double> values(size, LeastTree::kNever);
    for (int i = 0; i < 300; ++i) {
      const size_t at = random() % size;
      values[at] = random() % 5 == 0 ? LeastTree::kNever : static_cast<double>(random() % 20);
      tree.set(static_cast<int32_t>(at), values[at]);
      std::vector<std::pair<double, int32_t>> sorted;
      for (size_t node = 0; node < size; ++node) {
        if (values[node] != LeastTree::kNever) sorted.emplace_back(values[node], static_cast<int32_t>(node));
      }
      std::sort(sorted.begin(), sorted.end());
      std::array<int32_t, 4> found;
      const size_t count = tree.least(found);
      CHECK_EQ(count, std::min<size_t>(4, sorted.size()));
      for (size_t j = 0; j < count; ++j) CHECK_EQ(values[found[j]], sorted[j].first);
      const int32_t drawn = tree.draw(5.0, random());
      if (sorted.empty()) {
        CHECK_EQ(drawn, -1);
      } else {
        CHECK(values[drawn] <= std::max(5.0, sorted.front().first));
      }
    }
  }
}

TEST(routing, drawing_reaches_all_of_the_equal) {
  LeastTree tree;
  tree.resize(11);
  for (int32_t node = 0; node < 11; ++node) tree.set(node, node < 8 ? 0.5 * node : 9.0);
  std::set<int32_t> seen;
  std::mt19937_64 random(3);
  for (int i = 0; i < 500; ++i) seen.insert(tree.draw(4.0, random()));
  CHECK_EQ(seen.size(), size_t{8});
  tree.resize(40);  // keeps what it had
  CHECK_EQ(tree.at(3), 1.5);
  CHECK_EQ(tree.at(39), LeastTree::kNever);
}

TEST(routing, prefix_memory_knows_who_has_what) {
  std::mt19937_64 random(4);
  PrefixMemory memory(500);
  std::map<uint64_t, std::set<NodeId>> holders;
  std::vector<uint64_t> keys(20);
  for (uint64_t& key : keys) key = random();
  for (int i = 0; i < 400; ++i) {
    const auto node = static_cast<NodeId>(random() % 150);
    if (random() % 20 == 0) {
      memory.forget(node);
      for (auto& [key, nodes] : holders) nodes.erase(node);
    } else {
      const size_t depth = random() % keys.size();
      memory.note({keys.data(), depth}, node, i);
      for (size_t j = 0; j < depth; ++j) holders[keys[j]].insert(node);
    }
    std::vector<const PrefixMemory::Entry*> found;
    memory.lookup(keys, found);
    for (size_t j = 0; j < found.size(); ++j) {
      for (NodeId other = 0; other < 150; ++other) {
        CHECK_EQ(found[j]->is_held_by(other), holders[keys[j]].contains(other));
      }
    }
  }
}

TEST(routing, the_end_of_a_chain_is_forgotten_before_its_beginning) {
  PrefixMemory memory(10);
  std::vector<uint64_t> first = {1, 2, 3, 4, 5, 6}, second = {1, 2, 13, 14, 15, 16, 17, 18};
  memory.note(first, 0, 0);
  memory.note(second, 1, 0);
  CHECK_EQ(memory.size(), size_t{10});
  std::vector<const PrefixMemory::Entry*> found;
  memory.lookup(second, found);
  CHECK_EQ(found.size(), second.size());
  memory.lookup(first, found);
  CHECK_EQ(found.size(), size_t{4});
}

}  // namespace
}  // namespace hocket
