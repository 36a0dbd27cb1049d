// The plan of one step: what the worker computes and where it puts it. Seam 2.
//
// Inert data, structure of arrays. The scheduler owns one BatchPlan and refills it in place by schedule(); Python sees
// the arrays as numpy views without a copy. The views are valid until the next schedule().
//
// Requests in the plan are called sequences: sequence s covers the query tokens
// [query_start[s], query_start[s + 1]) of the flattened batch. Sequences with one query token that is their last
// known token (decodes) come first, then the prefill chunks.
//
// A row is a request's place in the worker's persistent block tables, 0 <= row < max_num_seqs. A request keeps its row
// while it is running; after preemption it may get another.
//
// The worker's block table is one int32 array [max_num_seqs][num_groups][num_vector_kinds][max_blocks_per_seq] of unit
// ids; vector kinds are K = 0, V = 1. A block of hidden states has its unit of layer group g where the kinds of all
// groups, taken as one dimension, have their g-th entry. The plan carries the table's changes, to be applied before the
// step runs.
// Where a token's vectors go follows from its row, its position and the table, so the plan carries no slot mapping.
#pragma once

#include <cstdint>
#include <vector>

#include "block_key.h"
#include "cache_form.h"
#include "ids.h"

namespace hocket {

enum class VectorKind : int32_t { kK = 0, kV = 1 };

struct HostTransfer {
  uint64_t request_id;
  Row row;  // to the host: the one it had; from the host: the one it has
  int32_t begin_token;
  int32_t end_token;
  int64_t num_units;  // on the host
  bool is_to_host;
  CacheKind kind;  // what is on the host; hidden states are projected on their way into K and V
};

// The hidden states of one block become K and V. Its old units, in the plan's projected_units, are read before this
// step writes anything: they may already be another block's. The row is in use, and the tables, once changed, have its
// new units; it may have no sequence in this step.
struct Projection {
  Row row;
  int32_t block_index;
};

// What moves between tiers (tiers.h), one block each.
enum class MoveKind : int32_t {
  kSave = 0,      // device -> host
  kLoad = 1,      // host -> device
  kStore = 2,     // host -> disk
  kFetch = 3,     // disk -> host
  kStepLoad = 4,  // host -> device, for the step of this plan
};

struct BatchPlan {
  // Grows by one with every schedule() that has work. Read by: engine loop, decision record.
  int64_t step_id = 0;

  // Per token, size num_tokens(). Read by: model runner.
  std::vector<int32_t> token_ids;  // input token
  std::vector<int32_t> positions;  // its position in its request, from 0
  std::vector<int32_t> token_row;  // row of its request

  // Per sequence, size num_seqs(). Read by: model runner, sampler.
  std::vector<uint64_t> request_ids;
  std::vector<int32_t> rows;
  std::vector<int32_t> query_start;  // size num_seqs() + 1
  std::vector<int32_t> seq_lens;     // tokens with cache after this step = position of the last query token + 1

  // Sequences that sample a token in this step, as indices into the arrays above. A chunk that does not reach the
  // end of what is known of its request is absent. Read by: model runner (logits), sampler; commit() takes one token
  // per entry, in this order.
  std::vector<int32_t> sample_seqs;

  // Block table changes: table.flat[block_table_index[i]] = block_table_unit[i]. Read by: model runner.
  std::vector<int64_t> block_table_index;
  std::vector<int32_t> block_table_unit;

  // Per sequence, size num_seqs(), or empty if no running request has a form other than KV. Read by: model runner.
  // A sequence's tokens are [0, uncached) recomputed beside the query tokens, and stored where the table has a block;
  // the last hidden ones of the context from the hidden cache; the others K and V. The first missing ones, query tokens
  // among them, have no block: what the table says of these is stale.
  std::vector<int32_t> cache_kinds;      // CacheKind of what this step stores
  std::vector<int32_t> uncached_tokens;  // recomputed from the start, beside the query tokens
  std::vector<int32_t> hidden_tokens;    // whose K and V are projected from the hidden cache
  std::vector<int32_t> missing_tokens;   // whole blocks; may reach beyond the sequence

  // The tokens to be recomputed, sequence after sequence: as many as uncached_tokens sums up to. Read by: model runner.
  std::vector<int32_t> uncached_token_ids;

  // Per sequence, size num_seqs(), or empty if this step loads nothing of uncached tokens: through how many layers,
  // from the first, these are recomputed. K and V of the layers behind are loaded from the host while the step runs;
  // the number of layers: none are. Read by: model runner, tier copies, simulator.
  std::vector<int32_t> recomputed_layers;
  // Where the host has what is loaded, block by block of the sequences with such layers: all of their uncached tokens,
  // which are whole blocks. The copies stay there until the plan is committed. Read by: tier copies.
  std::vector<int32_t> copy_slots;

  // Before the step runs, in this order: transfers to the host and projections read the tables as they were, then the
  // tables change, then projections and transfers to the device write. Read by: model runner, simulator.
  std::vector<HostTransfer> transfers;
  std::vector<Projection> projections;
  std::vector<int32_t> projected_units;  // [num_projections][hidden units per block]

  // Moves between tiers, also in a plan that computes nothing. Saves read the device as it is before the step runs and
  // before any load of this plan writes; the others run beside steps. Step loads are what the step itself waits for: it
  // reads no unit of a layer group before that group has landed, and all of them have landed when it is committed. They
  // are only in plans that compute something. Every move is reported by complete_moves() once it is done, by its id,
  // which may be used again afterwards. Read by: worker's tier copies.
  std::vector<int32_t> move_ids;
  std::vector<int32_t> move_kinds;  // MoveKind
  std::vector<int32_t> move_slots;  // on the host
  std::vector<int32_t> move_units;  // [num_moves][units_per_block]: of saves and loads; kNone for the others
  std::vector<BlockKey> move_keys;  // names on disk
  int32_t num_step_loads = 0;       // of the moves

  // Requests that lost their row by preemption since the last plan. Read by: statistics, tests.
  std::vector<uint64_t> preempted_ids;

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_seqs() const { return static_cast<int32_t>(rows.size()); }
  bool empty() const { return rows.empty(); }  // nothing to compute
};

}  // namespace hocket
