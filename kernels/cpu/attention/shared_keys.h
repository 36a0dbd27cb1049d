// Which sequences read which keys together: those whose block tables begin with the same units, as the prefix cache
// makes them.
//
// Sequences are put in the order of their tables, so that those with the longest beginnings in common are neighbours.
// Then, partition by partition, each run of neighbours that have its keys in common reads them as one: a system prompt
// all sequences together, behind it a document those who ask about it. A run's last partition may be cut after a block
// of keys: its sequences go on from there by themselves. What they compute has the same order either way
// (attention_state.h).
#pragma once

#include "attention/attention_state.h"
#include "paged_attention.h"
#include "simd.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {

// Sequences order[first, first + count) of one run, and keys that they have in common: [key_begin, key_end), from a
// multiple of kPartition to one of kKeyBlock.
struct SharedSpan {
  int32_t first;
  int32_t count;
  int64_t key_begin;
  int64_t key_end;
};

class SharedKeys {
 public:
  static constexpr int64_t kMinRows = 12;  // query rows per KV head; below, tiles are not faster

  // is_taking_part(s): one query token, which sees all keys. Memory is the thread's until the next one is made.
  template <class IsTakingPart>
  SharedKeys(const PagedAttentionArgs& args, const IsTakingPart& is_taking_part)
      : args_(args),
        group_(args.num_heads / args.pool.num_kv_heads),
        row_size_(args.pool.num_groups * 2 * args.pool.max_blocks),
        table_(args.pool.block_table + args.layer / args.pool.layers_per_unit * 2 * args.pool.max_blocks) {
    const int64_t n = args.num_seqs;
    if (n < 2 || n * group_ < kMinRows) return;
    const size_t bytes = static_cast<size_t>(n) * (sizeof(SharedSpan) + sizeof(int64_t) + 5 * sizeof(int32_t));
    spans_ = static_cast<SharedSpan*>(scratch(Scratch::kShared, bytes));
    common_ = reinterpret_cast<int64_t*>(spans_ + n);
    order_ = reinterpret_cast<int32_t*>(common_ + n);
    shared_ = order_ + n;
    span_of_ = shared_ + n;
    num_units_ = span_of_ + n;
    int32_t* spare = num_units_ + n;
    for (int64_t s = 0; s < n; ++s) {
      if (args.seq_lens[s] <= kKeyBlock || !is_taking_part(s)) continue;
      order_[count_++] = static_cast<int32_t>(s);
      num_units_[s] = static_cast<int32_t>((args.seq_lens[s] - 1) / args.pool.block_size);
    }
    if (count_ < 2 || count_ * group_ < kMinRows) {
      count_ = 0;
      return;
    }
    sort(spare);
    bool is_any = false;
    for (int64_t i = 0; i < count_; ++i) {
      common_[i] = i == 0 ? 0 : common_blocks(order_[i - 1], order_[i]);
      shared_[i] = 0;
      span_of_[i] = -1;
      is_any |= common_[i] > 0;
    }
    if (is_any) find_spans();
  }

  int64_t num_spans() const { return num_spans_; }
  const SharedSpan& span(int64_t i) const { return spans_[i]; }

  // Places of the order, and the sequence that is at one.
  int64_t num_places() const { return count_; }
  int32_t sequence(int64_t place) const { return order_[place]; }

  // Keys [0, n) that the sequence at this place reads with others.
  int64_t num_keys(int64_t place) const { return shared_[place] * kKeyBlock; }

 private:
  static constexpr int64_t kBlocks = kPartition / kKeyBlock;

  const int32_t* table(int32_t seq) const { return table_ + args_.rows[seq] * row_size_; }

  // The first place in which a and b differ, n if in none.
  static int64_t common_prefix(const int32_t* a, const int32_t* b, int64_t n) {
    constexpr int64_t kStep = 16;
    int64_t i = 0;
    while (i + kStep <= n && __builtin_memcmp(a + i, b + i, kStep * sizeof(int32_t)) == 0) i += kStep;
    while (i < n && a[i] == b[i]) ++i;
    return i;
  }

  // Key blocks that lie in the same units, of keys and of values.
  int64_t common_blocks(int32_t a, int32_t b) const {
    const int64_t n = min(num_units_[a], num_units_[b]), values = args_.pool.max_blocks;
    const int64_t units = common_prefix(table(a), table(b), n);
    return common_prefix(table(a) + values, table(b) + values, units) * args_.pool.block_size / kKeyBlock;
  }

  // By the units of their keys; what is the beginning of another comes first.
  bool is_before(int32_t a, int32_t b) const {
    const int64_t n = min(num_units_[a], num_units_[b]);
    const int64_t i = common_prefix(table(a), table(b), n);
    return i < n ? table(a)[i] < table(b)[i] : num_units_[a] < num_units_[b];
  }

  // Merge sort, bottom up.
  void sort(int32_t* spare) {
    int32_t *from = order_, *to = spare;
    for (int64_t width = 1; width < count_; width *= 2) {
      for (int64_t begin = 0; begin < count_; begin += 2 * width) {
        const int64_t middle = min(begin + width, count_), end = min(begin + 2 * width, count_);
        int64_t left = begin, right = middle;
        for (int64_t i = begin; i < end; ++i) {
          const bool is_right = left == middle || (right < end && is_before(from[right], from[left]));
          to[i] = from[is_right ? right++ : left++];
        }
      }
      int32_t* const swapped = from;
      from = to;
      to = swapped;
    }
    order_ = from;
  }

  void find_spans() {
    bool is_more = true;
    for (int64_t block = 0; is_more; block += kBlocks) {
      is_more = take_runs(block, kBlocks);
      for (int64_t n = kBlocks - 1; n > 0; --n) take_runs(block, n);
    }
  }

  // Runs of those who share all blocks before this one, and n more. Returns whether there are any.
  bool take_runs(int64_t block, int64_t n) {
    bool is_any = false;
    for (int64_t i = 0; i < count_;) {
      int64_t end = i + 1;
      if (shared_[i] == block) {
        while (end < count_ && shared_[end] == block && common_[end] >= block + n) ++end;
        if (end - i >= 2 && (end - i) * group_ >= kMinRows) {
          take(i, end, block, block + n);
          is_any = true;
        }
      }
      i = end;
    }
    return is_any;
  }

  void take(int64_t first, int64_t end, int64_t block, int64_t block_end) {
    const int32_t count = static_cast<int32_t>(end - first);
    int32_t index = span_of_[first];
    if (index >= 0 && spans_[index].first == first && spans_[index].count == count) {
      spans_[index].key_end = block_end * kKeyBlock;
    } else {
      index = static_cast<int32_t>(num_spans_++);
      spans_[index] = {static_cast<int32_t>(first), count, block * kKeyBlock, block_end * kKeyBlock};
    }
    for (int64_t i = first; i < end; ++i) {
      shared_[i] = static_cast<int32_t>(block_end);
      span_of_[i] = index;
    }
  }

  const PagedAttentionArgs& args_;
  int64_t group_;
  int64_t row_size_;      // of the block table
  const int32_t* table_;  // of the layer's keys
  int64_t count_ = 0;     // sequences that take part
  int64_t num_spans_ = 0;
  SharedSpan* spans_ = nullptr;   // runs are nested or apart, and of two at least: fewer than sequences
  int64_t* common_ = nullptr;     // [count], key blocks that each has in common with the one before it
  int32_t* order_ = nullptr;      // [count]
  int32_t* shared_ = nullptr;     // [count], key blocks that are taken
  int32_t* span_of_ = nullptr;    // [count], the last one it is in
  int32_t* num_units_ = nullptr;  // of each sequence, before its last key, which stays its own
};

}  // namespace hocket::cpu::HOCKET_ISA
