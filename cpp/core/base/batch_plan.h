// The plan of one step: what the worker computes and where it puts it. Seam 2.
//
// Inert data, structure of arrays. The scheduler owns one BatchPlan and refills it in place by schedule(); Python sees
// the arrays as numpy views without a copy. The views are valid until the next schedule().
//
// Requests in the plan are called sequences: sequence s covers the query tokens
// [query_start[s], query_start[s + 1]) of the flattened batch. Sequences with one query token that is their last
// known token (decodes) come first, then the prefill chunks. Behind a decode stand the tokens that are guessed to come
// after it (speculation/speculation.h), each a sequence of one query token of the same request and row, one position
// further: K and V of all tokens of a layer are written before any of them attends.
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

#include "base/cache_form.h"
#include "base/form_plan.h"
#include "base/ids.h"
#include "base/table_changes.h"
#include "base/tier_moves.h"

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
  // per entry, in this order. At most max_num_seqs.
  std::vector<int32_t> sample_seqs;

  // Before the step runs, in this order: transfers to the host and projections read the tables as they were, then the
  // tables change, then projections and transfers to the device write. Read by: simulator; no engine swaps (saves.h).
  std::vector<HostTransfer> transfers;

  TableChanges table;  // Read by: model runner.
  TierMoves moves;     // Read by: worker's tier copies.
  FormPlan forms;      // empty without SchedulerConfig::has_forms(): plain steps know nothing of it

  // Requests that lost their row by preemption since the last plan. Read by: statistics, tests.
  std::vector<uint64_t> preempted_ids;

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_seqs() const { return static_cast<int32_t>(rows.size()); }
  bool empty() const { return rows.empty(); }  // nothing to compute
  // Whether the step waits for copies from the host, so that its time says little of what it computes.
  bool has_copies() const { return !transfers.empty() || moves.num_step_loads > 0 || forms.has_copies(); }
};

}  // namespace hocket
