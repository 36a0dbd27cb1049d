// A tournament over one number per node: which ones are the least, when a number changes in every decision.
// A change costs O(log n), the least one O(log n), the k least O(k log n). Thread safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace hocket {

class LeastTree {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();  // is never found

  void resize(size_t num_nodes) {
    const std::vector<double> old(values_.begin() + num_leaves_, values_.end());
    num_leaves_ = std::bit_ceil(std::max<size_t>(1, num_nodes));
    values_.assign(2 * num_leaves_, kNever);
    for (size_t i = 0; i < std::min(old.size(), num_leaves_); ++i) set(static_cast<int32_t>(i), old[i]);
  }

  void set(int32_t node, double value) {
    size_t at = num_leaves_ + node;
    values_[at] = value;
    for (at /= 2; at >= 1; at /= 2) {
      const double least = std::min(values_[2 * at], values_[2 * at + 1]);
      if (values_[at] == least) break;
      values_[at] = least;
    }
  }

  double at(int32_t node) const { return values_[num_leaves_ + node]; }

  // One of the least; values up to `floor` are equal. Bits of `draw` decide among equals, half and half at each fork,
  // so a node beside few others is drawn more often than one beside many. -1: there is none.
  int32_t draw(double floor, uint64_t draw) const {
    if (values_.size() < 2 || values_[1] == kNever) return -1;
    size_t at = 1;
    for (; at < num_leaves_; draw = std::rotr(draw, 1)) {
      const double left = std::max(floor, values_[2 * at]), right = std::max(floor, values_[2 * at + 1]);
      at = 2 * at + (right < left || (right == left && right != kNever && (draw & 1)) ? 1 : 0);
    }
    return static_cast<int32_t>(at - num_leaves_);
  }

  // The least ones in order; among equals the first of the table. Returns how many there are, found.size() at most.
  size_t least(std::span<int32_t> found) const {
    size_t count = 0, num_open = 0;
    std::array<size_t, 64> open;  // subtrees by their least value, a heap
    const auto is_worse = [&](size_t a, size_t b) {
      return values_[a] > values_[b] || (values_[a] == values_[b] && a > b);
    };
    const auto push = [&](size_t at) {
      if (values_[at] == kNever || num_open == open.size()) return;
      open[num_open++] = at;
      std::push_heap(open.begin(), open.begin() + num_open, is_worse);
    };
    if (values_.size() >= 2) push(1);
    while (num_open > 0 && count < found.size()) {
      std::pop_heap(open.begin(), open.begin() + num_open, is_worse);
      const size_t at = open[--num_open];
      if (at >= num_leaves_) {
        found[count++] = static_cast<int32_t>(at - num_leaves_);
      } else {
        push(2 * at);
        push(2 * at + 1);
      }
    }
    return count;
  }

 private:
  size_t num_leaves_ = 0;
  std::vector<double> values_;  // [2 * num_leaves]; 1 is the root
};

}  // namespace hocket
