// How the work is cut.
//
// A work item is one sequence, some of its KV heads, some of its query rows and a range of keys. A sequence with one
// query and few heads per KV head is streamed (attention_stream.h), several KV heads per item so that the cache is read
// in order; all others go in tiles of rows (attention_tile.h), one KV head per item. Only where there are fewer items
// than threads are the keys of a sequence split, between partitions; these are joined at the end, in the same order as
// where one item has them all. So results do not depend on how the work is cut (attention_state.h).
//
// Where streamed sequences have keys in common (shared_keys.h) these go first, in tiles whose rows are queries of all
// of them, and each sequence goes on behind them. Those of rows in int8 do not, in a pool where other rows are not.
#include "paged_attention.h"

#include <type_traits>

#include "attention/attention_state.h"
#include "attention/attention_stream.h"
#include "attention/attention_tile.h"
#include "attention/shared_keys.h"
#include "cpu.h"
#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"
#include "with_type.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

constexpr int64_t kMaxStreamGroup = 12;    // query heads per KV head; above, tiles are faster
constexpr int64_t kWorthForking = 131072;  // multiply-adds

struct SequencePlan {
  int64_t first_item;    // items of this sequence: [first_item, the next sequence's first_item)
  int64_t partial_base;  // floats; of this sequence's first partial
  int64_t key_begin;     // first key that any of its queries sees
  int64_t first_partition;
  int64_t num_partitions;   // that any of its queries sees
  int64_t num_shared_keys;  // read with others
  WaitingStates states;     // after these; without memory where there are none
  int32_t num_splits;
  int32_t num_head_parts;
  int32_t num_row_tiles;
  bool is_streamed;
  bool is_int8;  // in a pool that is not
};

// The part of [begin, end) that is piece i of n.
int64_t cut(int64_t begin, int64_t end, int64_t i, int64_t n) { return begin + (end - begin) * i / n; }

// Both ways to attend to keys that are kept alike.
template <class T>
struct Ways {
  StreamAttention<T> stream;
  TileAttention<T> tile;

  Ways(const PagedAttentionArgs& args, const PagedLayer<T>& layer) : stream(args, layer), tile(args, layer) {}
};

template <class T>
class PagedAttention {
 public:
  PagedAttention(const PagedAttentionArgs& args)
      : args_(args),
        num_threads_(num_threads()),
        group_(args.num_heads / args.pool.num_kv_heads),
        ways_(args, {args.pool, args.layer}),
        int8_ways_(args, PagedLayer<int8_t>::of_int8_rows(args.pool, args.layer)) {}

  void run() {
    plan_ = static_cast<SequencePlan*>(
        scratch(Scratch::kPlan, static_cast<size_t>(args_.num_seqs + 1) * sizeof(SequencePlan)));
    const int64_t num_partial_floats = make_plan();
    if (num_partial_floats > 0) {
      partials_ =
          static_cast<float*>(scratch(Scratch::kPartial, static_cast<size_t>(num_partial_floats) * sizeof(float)));
    }
    if (shares_keys() && num_partial_floats == 0 && work_ >= kWorthForking) attend_shared();
    for_items(plan_[args_.num_seqs].first_item, [this](int64_t i) { run_item(i); });
    if (num_partial_floats > 0) merge();
  }

 private:
  // fn(i) for 0 <= i < num_items, by all threads where that pays.
  template <class Fn>
  void for_items(int64_t num_items, const Fn& fn) const {
    if (work_ >= kWorthForking) return parallel_tasks(num_items, fn);
    for (int64_t i = 0; i < num_items; ++i) fn(i);
  }

  int64_t num_queries(int64_t seq) const { return args_.query_start[seq + 1] - args_.query_start[seq]; }

  int64_t first_key(int64_t seq) const {
    const int64_t first_query = args_.seq_lens[seq] - num_queries(seq);
    return args_.sliding_window > 0 ? max<int64_t>(0, first_query - args_.sliding_window + 1) : 0;
  }

  // Returns the floats needed for partial results.
  int64_t make_plan() {
    const int64_t num_kv_heads = args_.pool.num_kv_heads;
    int64_t num_unsplit = 0;  // items, each with one KV head
    for (int64_t s = 0; s < args_.num_seqs; ++s) {
      const int64_t queries = num_queries(s);
      SequencePlan& plan = plan_[s];
      plan.key_begin = first_key(s);
      plan.num_shared_keys = 0;
      plan.states = {};
      plan.is_streamed = queries == 1 && group_ <= kMaxStreamGroup;
      plan.is_int8 = kHasInt8Rows && is_int8_row(args_.pool, args_.rows[s]);
      plan.num_row_tiles = static_cast<int32_t>(plan.is_streamed ? 1 : ceil_div(queries * group_, kTileRows));
      num_unsplit += plan.num_row_tiles * num_kv_heads;
      work_ += queries * (args_.seq_lens[s] - plan.key_begin) * args_.num_heads * args_.pool.head_dim;
    }
    const int64_t wanted = num_threads_ == 1 ? 1 : 4 * num_threads_;
    const int64_t splits = num_threads_ == 1 ? 1 : ceil_div(2 * num_threads_, max<int64_t>(1, num_unsplit));
    const int64_t head_parts = max<int64_t>(1, min(num_kv_heads, ceil_div(wanted, max<int64_t>(1, args_.num_seqs))));

    int64_t num_items = 0, num_partial_floats = 0;
    for (int64_t s = 0; s < args_.num_seqs; ++s) {
      SequencePlan& plan = plan_[s];
      plan.first_partition = plan.key_begin / kPartition;
      plan.num_partitions = ceil_div(args_.seq_lens[s], kPartition) - plan.first_partition;
      plan.first_item = num_items;
      plan.num_head_parts = static_cast<int32_t>(plan.is_streamed ? head_parts : num_kv_heads);
      plan.num_splits = static_cast<int32_t>(max<int64_t>(1, min(splits, plan.num_partitions)));
      num_items += int64_t{plan.num_head_parts} * plan.num_row_tiles * plan.num_splits;
      plan.partial_base = num_partial_floats;
      if (plan.num_splits > 1) num_partial_floats += plan.num_partitions * partition_size(s);
    }
    plan_[args_.num_seqs].first_item = num_items;
    return num_partial_floats;
  }

  // Floats of one partition's partials of one sequence.
  int64_t partition_size(int64_t seq) const {
    return num_queries(seq) * args_.num_heads * partial_size(args_.pool.head_dim);
  }

  // Keys that streamed sequences have in common.
  void attend_shared() {
    const SharedKeys shared(
        args_, [this](int64_t s) { return plan_[s].is_streamed && plan_[s].key_begin == 0 && !plan_[s].is_int8; });
    if (shared.num_spans() == 0) return;
    const int64_t num_places = shared.num_places(), row_size = ways_.stream.row_size();
    const int64_t state_size = WaitingStates::size(args_.num_heads, row_size);
    int64_t num_states = 0;
    for (int64_t i = 0; i < num_places; ++i) num_states += ceil_div(shared.num_keys(i), kPartition);
    const size_t bytes = static_cast<size_t>(num_places) * (sizeof(WaitingStates) + sizeof(int32_t)) +
                         static_cast<size_t>(num_states * state_size) * sizeof(float);
    float* data = static_cast<float*>(scratch(Scratch::kPartial, bytes));
    WaitingStates* states = reinterpret_cast<WaitingStates*>(data + num_states * state_size);
    int32_t* tokens = reinterpret_cast<int32_t*>(states + num_places);
    for (int64_t i = 0; i < num_places; ++i) {
      const int32_t seq = shared.sequence(i);
      tokens[i] = args_.query_start[seq];
      states[i] = {data, args_.num_heads, row_size};
      data += ceil_div(shared.num_keys(i), kPartition) * state_size;
      if (shared.num_keys(i) == 0) continue;
      plan_[seq].num_shared_keys = shared.num_keys(i);
      plan_[seq].states = states[i];
      if (args_.num_shared_keys != nullptr) *args_.num_shared_keys += shared.num_keys(i);
    }
    run_spans(shared, tokens, states);
  }

  // tokens, states: of each place.
  void run_spans(const SharedKeys& shared, const int32_t* tokens, const WaitingStates* states) const {
    const int64_t num_heads = args_.pool.num_kv_heads;
    const auto num_tiles = [this](const SharedSpan& span) { return ceil_div(span.count * group_, kTileRows); };
    int64_t num_whole = 0;  // items, each with all of the span's keys
    for (int64_t i = 0; i < shared.num_spans(); ++i) num_whole += num_tiles(shared.span(i)) * num_heads;
    const int64_t wanted = num_threads_ == 1 ? 1 : ceil_div(4 * num_threads_, num_whole);
    const auto num_pieces = [wanted](const SharedSpan& span) {
      return min(wanted, ceil_div(span.key_end - span.key_begin, kPartition));
    };
    int64_t num_items = 0;
    for (int64_t i = 0; i < shared.num_spans(); ++i) {
      num_items += num_tiles(shared.span(i)) * num_heads * num_pieces(shared.span(i));
    }
    for_items(num_items, [&](int64_t item) {
      int64_t i = 0;
      for (;; ++i) {
        const int64_t items = num_tiles(shared.span(i)) * num_heads * num_pieces(shared.span(i));
        if (item < items) break;
        item -= items;
      }
      const SharedSpan& span = shared.span(i);
      const int64_t tile = item % num_tiles(span), head = item / num_tiles(span) % num_heads;
      const int64_t piece = item / num_tiles(span) / num_heads;
      const int64_t begin = span.key_begin / kPartition, end = ceil_div(span.key_end, kPartition);
      const int64_t row_begin = tile * kTileRows, row_end = min(row_begin + kTileRows, span.count * group_);
      ways_.tile.run_shared(args_.rows[shared.sequence(span.first)], head, row_begin, row_end,
                            cut(begin, end, piece, num_pieces(span)) * kPartition,
                            min(span.key_end, cut(begin, end, piece + 1, num_pieces(span)) * kPartition),
                            tokens + span.first, states + span.first);
    });
  }

  int64_t sequence_of(int64_t item) const {
    int64_t low = 0, high = args_.num_seqs;  // plan_[low].first_item <= item < plan_[high].first_item
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (plan_[middle].first_item <= item ? low : high) = middle;
    }
    return low;
  }

  void run_item(int64_t item) const {
    const int64_t seq = sequence_of(item);
    if constexpr (kHasInt8Rows) {
      if (plan_[seq].is_int8) return attend(int8_ways_, seq, item - plan_[seq].first_item);
    }
    attend(ways_, seq, item - plan_[seq].first_item);
  }

  // Item i of the sequence.
  template <class Of>
  void attend(const Ways<Of>& ways, int64_t seq, int64_t i) const {
    const SequencePlan& plan = plan_[seq];
    const int64_t row_tile = i % plan.num_row_tiles;  // one after the other over the same keys, which stay in the cache
    i /= plan.num_row_tiles;
    const int64_t head_part = i % plan.num_head_parts;
    const int64_t split = i / plan.num_head_parts;

    const int64_t seq_len = args_.seq_lens[seq], num_kv_heads = args_.pool.num_kv_heads;
    const int64_t begin = plan.first_partition, end = begin + plan.num_partitions;
    const int64_t unshared = max(plan.key_begin, plan.num_shared_keys);
    const int64_t key_begin = max(unshared, cut(begin, end, split, plan.num_splits) * kPartition);
    const int64_t key_end = min(seq_len, cut(begin, end, split + 1, plan.num_splits) * kPartition);
    float* partials = plan.num_splits > 1 ? partials_ + plan.partial_base : nullptr;
    const AttentionSink sink{&args_, args_.query_start[seq], partials, begin, partition_size(seq)};
    if (plan.is_streamed) {
      ways.stream.run(args_.rows[seq], cut(0, num_kv_heads, head_part, plan.num_head_parts),
                      cut(0, num_kv_heads, head_part + 1, plan.num_head_parts), key_begin, key_end, plan.states, sink);
    } else {
      const int64_t row_begin = row_tile * kTileRows;
      const int64_t row_end = min(row_begin + kTileRows, num_queries(seq) * group_);
      ways.tile.run(args_.rows[seq], head_part, row_begin, row_end, key_begin, key_end, seq_len - num_queries(seq),
                    sink);
    }
  }

  void merge() const {
    const int64_t head_dim = args_.pool.head_dim;
    for (int64_t s = 0; s < args_.num_seqs; ++s) {
      const SequencePlan& plan = plan_[s];
      if (plan.num_splits == 1) continue;
      float* out = static_cast<float*>(args_.out) + args_.query_start[s] * args_.num_heads * head_dim;
      float* partials = partials_ + plan.partial_base;
      for (int64_t i = 0; i < num_queries(s) * args_.num_heads; ++i) {
        merge_partials(partials + i * partial_size(head_dim), plan.num_partitions, partition_size(s), head_dim,
                       out + i * head_dim);
      }
    }
  }

  static constexpr bool kHasInt8Rows = !std::is_same_v<T, int8_t>;

  const PagedAttentionArgs& args_;
  int64_t num_threads_;
  int64_t group_;
  Ways<T> ways_;
  Ways<int8_t> int8_ways_;        // of rows in int8
  SequencePlan* plan_ = nullptr;  // [num_seqs + 1]
  float* partials_ = nullptr;
  int64_t work_ = 0;  // multiply-adds of scores, about
};

}  // namespace

Status paged_attention(const PagedAttentionArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  const auto run = [&](auto zero) {
    PagedAttention<decltype(zero)>(args).run();
    return Status::kOk;
  };
  return args.pool.dtype == DType::kInt8 ? run(int8_t{}) : with_type(args.pool.dtype, run);
}

}  // namespace hocket::cpu::HOCKET_ISA
