#include "scheduler/plan_writer.h"

#include <algorithm>
#include <numeric>

namespace hocket {

void PlanWriter::reserve(int32_t max_num_seqs, int32_t max_num_batched_tokens, BatchPlan* plan) {
  const auto max_seqs = std::min(max_num_seqs, max_num_batched_tokens);
  for (auto* per_token : {&plan->token_ids, &plan->positions, &plan->token_row, &plan->forms.uncached_token_ids}) {
    per_token->reserve(max_num_batched_tokens);
  }
  seq_slots_.reserve(max_seqs);
  prefills_.reserve(max_seqs);
  plan->request_ids.reserve(max_seqs);
  plan->query_start.reserve(max_seqs + 1);
  for (auto* per_seq : {&plan->rows, &plan->seq_lens, &plan->sample_seqs, &plan->forms.cache_kinds,
                        &plan->forms.uncached_tokens, &plan->forms.hidden_tokens, &plan->forms.missing_tokens}) {
    per_seq->reserve(max_seqs);
  }
  plan->preempted_ids.reserve(max_num_seqs);
  plan->transfers.reserve(2 * static_cast<size_t>(max_num_seqs));
}

void PlanWriter::write(const RequestTable& requests, std::span<const Slot> running, const GuessCounts& guesses,
                       BatchPlan* plan) {
  int32_t num_tokens = 0;
  seq_slots_.clear();
  prefills_.clear();
  for (const Slot slot : running) {
    const int32_t num_scheduled = requests.num_scheduled_tokens[slot];
    if (num_scheduled == 0) continue;
    num_tokens += num_scheduled;
    (requests.num_uncomputed_tokens(slot) == 1 ? seq_slots_ : prefills_).push_back(slot);
    if (const int32_t num_guessed = guesses[slot]; num_guessed > 0) {
      num_tokens += num_guessed;
      seq_slots_.insert(seq_slots_.end(), num_guessed, slot);
    }
  }
  const size_t num_decodes = seq_slots_.size();
  seq_slots_.insert(seq_slots_.end(), prefills_.begin(), prefills_.end());

  const size_t num_seqs = seq_slots_.size();
  plan->token_ids.resize(num_tokens);
  plan->positions.resize(num_tokens);
  plan->token_row.resize(num_tokens);
  plan->request_ids.resize(num_seqs);
  plan->rows.resize(num_seqs);
  plan->query_start.resize(num_seqs + 1);
  plan->seq_lens.resize(num_seqs);
  plan->sample_seqs.resize(num_decodes);
  plan->query_start[0] = 0;
  for (size_t s = 0; s < num_decodes; ++s) write_decode(requests, s, plan);
  for (size_t s = 1; guesses.any() && s < num_decodes; ++s) {
    if (seq_slots_[s] == seq_slots_[s - 1]) write_guess(requests, s, plan);
  }
  for (size_t s = num_decodes; s < num_seqs; ++s) write_chunk(requests, s, plan);
}

void PlanWriter::write_decode(const RequestTable& requests, size_t s, BatchPlan* plan) const {
  const Slot slot = seq_slots_[s];
  const int32_t position = requests.num_computed_tokens[slot];
  const Row row = requests.row[slot];
  const auto index = static_cast<int32_t>(s);
  plan->token_ids[s] = requests.last_token[slot];
  plan->positions[s] = position;
  plan->token_row[s] = row;
  plan->request_ids[s] = requests.id[slot];
  plan->rows[s] = row;
  plan->query_start[s + 1] = index + 1;
  plan->seq_lens[s] = position + 1;
  plan->sample_seqs[s] = index;
}

// What differs from the decode of that request, whose last guess or decode stands before it.
void PlanWriter::write_guess(const RequestTable& requests, size_t s, BatchPlan* plan) const {
  const int32_t position = plan->positions[s - 1] + 1;
  plan->token_ids[s] = requests.tokens[seq_slots_[s]][position];
  plan->positions[s] = position;
  plan->seq_lens[s] = position + 1;
}

void PlanWriter::write_chunk(const RequestTable& requests, size_t s, BatchPlan* plan) const {
  const Slot slot = seq_slots_[s];
  const int32_t start = plan->query_start[s];
  const int32_t begin = requests.num_computed_tokens[slot];
  const int32_t num_scheduled = requests.num_scheduled_tokens[slot];
  const int32_t end = begin + num_scheduled;
  const auto chunk = requests.known_tokens(slot).subspan(begin, num_scheduled);
  std::copy(chunk.begin(), chunk.end(), plan->token_ids.begin() + start);
  std::iota(plan->positions.begin() + start, plan->positions.begin() + start + num_scheduled, begin);
  std::fill_n(plan->token_row.begin() + start, num_scheduled, requests.row[slot]);
  plan->request_ids[s] = requests.id[slot];
  plan->rows[s] = requests.row[slot];
  plan->query_start[s + 1] = start + num_scheduled;
  plan->seq_lens[s] = end;
  if (end == requests.num_tokens[slot]) plan->sample_seqs.push_back(static_cast<int32_t>(s));
}

}  // namespace hocket
