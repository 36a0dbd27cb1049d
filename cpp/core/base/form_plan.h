// What a plan says of forms other than KV (cache_form.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace hocket {

// The hidden states of one block become K and V. Its old units, in the plan's projected_units, are read before this
// step writes anything: they may already be another block's. The row is in use, and the tables, once changed, have its
// new units; it may have no sequence in this step.
struct Projection {
  Row row;
  int32_t block_index;
};

// K and V of one block become int8, in new units, one per layer group, of the same row and place. Its old units, in the
// plan's rounded_units, are read before anything is written, as a projection's are.
struct Rounding {
  Row row;
  int32_t block_index;
};

struct FormPlan {
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

  // Before the step runs, projections read the tables as they were; then the tables change; then projections write.
  std::vector<Projection> projections;
  std::vector<int32_t> projected_units;  // [num_projections][hidden units per block]

  // After the tables have changed, before anything else of the step is written. The units are as the tables named them,
  // group by group K and V.
  std::vector<Rounding> roundings;
  std::vector<int32_t> rounded_units;  // [num_roundings][units per block]

  bool has_copies() const { return !copy_slots.empty(); }

  // The row has been given up: what was to become of its blocks in this step no longer does.
  void drop_changes(Row row);
};

}  // namespace hocket
