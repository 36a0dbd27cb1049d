#include "stages/step_builder.h"

#include <algorithm>

namespace hocket {

void StepBuilder::begin(const Snapshot& snapshot, Composition* composition) {
  snapshot_ = &snapshot;
  has_forms_ = knows_forms_ && snapshot.memory.has_forms();
  latency_ = &snapshot.estimates.latency;
  composition_ = composition;
  batch_.clear();
  copy_seconds_ = 0.0;
  max_seconds_ = std::numeric_limits<double>::infinity();
  tokens_left_ = snapshot.max_num_tokens;
  num_advanced_ = 0.0;
}

void StepBuilder::grant(Slot slot, int32_t num_tokens, bool is_admission, CacheForm form) {
  composition_->grants.push_back({slot, num_tokens, is_admission, form});
  tokens_left_ -= num_tokens;
  num_advanced_ += num_tokens;
}

void StepBuilder::decode(Slot slot) {
  if (tokens_left_ == 0) return;
  batch_.add_fixed_decode(snapshot_->requests.num_tokens[slot]);
  if (has_forms_) add(form_cost(slot));
  grant(slot, 1, false, {});
}

bool StepBuilder::try_decode(Slot slot) {
  if (tokens_left_ == 0) return false;
  const int32_t context = snapshot_->requests.num_tokens[slot];
  const FormCost form_cost = has_forms_ ? this->form_cost(slot) : FormCost{};
  batch_.add_decode(context);
  add(form_cost);
  if (seconds() > max_seconds_) {
    batch_.remove_decode(context);
    remove(form_cost);
    return false;
  }
  grant(slot, 1, false, {});
  return true;
}

int32_t StepBuilder::prefill(Slot slot, CacheForm form, bool is_whole) {
  const RequestTable& requests = snapshot_->requests;
  const bool is_admission = requests.state[slot] == RequestState::kWaiting;
  const int32_t context = context_of(slot);
  const int32_t num_left = std::max(1, requests.num_tokens[slot] - context);
  const FormCost form_cost = has_forms_ ? this->form_cost(slot) : FormCost{};
  const double copies = is_admission ? copy_seconds(slot) : 0.0;
  add(form_cost);
  copy_seconds_ += copies;
  const int32_t num_tokens = most_tokens(context, num_left);
  if (num_tokens == 0 || (is_whole && num_tokens < num_left)) {
    remove(form_cost);
    copy_seconds_ -= copies;
    return 0;
  }
  batch_.add_chunk(context, num_tokens);
  if (is_admission) num_advanced_ += context;
  // The cache may hold less by now than the hint says: the scheduler cuts what does not fit.
  grant(slot, num_tokens, is_admission, form);
  return num_tokens;
}

bool StepBuilder::prefill_at_most(Slot slot, int32_t num_tokens, bool is_whole, CacheForm form) {
  const RequestTable& requests = snapshot_->requests;
  const int32_t context = context_of(slot);
  const int32_t num_left = requests.num_tokens[slot] - context;
  if (is_whole && num_left > tokens_left_ && num_left <= snapshot_->max_num_tokens) return false;
  num_tokens = std::min({is_whole ? num_left : num_tokens, num_left, tokens_left_});
  if (num_tokens <= 0) return false;
  const bool is_admission = requests.state[slot] == RequestState::kWaiting;
  if (is_admission) copy_seconds_ += copy_seconds(slot);
  batch_.add_chunk(context, num_tokens);
  if (has_forms_) add(form_cost(slot));
  grant(slot, num_tokens, is_admission, form);
  return true;
}

StepBuilder::FormCost StepBuilder::form_cost(Slot slot) const {
  const RequestTable& requests = snapshot_->requests;
  const Row row = requests.row[slot];
  if (row == kNone) return {};
  const bool is_hidden = snapshot_->memory.form(row).kind == CacheKind::kHidden;
  const int32_t num_own = requests.num_computed_tokens[slot] - snapshot_->memory.num_shared_blocks(row) * block_size_;
  const int32_t num_recomputed = requests.num_recomputed_tokens[slot];
  const int32_t num_loaded_layers = requests.num_loaded_layers[slot];
  const int32_t num_hidden = is_hidden ? std::max(0, num_own) : 0;
  if (num_loaded_layers == 0) return {num_hidden, num_recomputed};
  const double share = static_cast<double>(num_loaded_layers) / num_layers_;
  const int64_t num_units = int64_t{num_recomputed / block_size_} * snapshot_->memory.units_per_block();
  return {num_hidden, static_cast<int32_t>((1 - share) * num_recomputed),
          share * snapshot_->estimates.transfer_seconds(num_units)};
}

void StepBuilder::add(FormCost cost) {
  batch_.add_hidden(cost.hidden_tokens);
  copy_seconds_ += cost.copy_seconds;
  if (cost.uncached_tokens > 0) batch_.add_chunk(0, cost.uncached_tokens);
}

void StepBuilder::remove(FormCost cost) {
  batch_.remove_hidden(cost.hidden_tokens);
  copy_seconds_ = std::max(0.0, copy_seconds_ - cost.copy_seconds);
  if (cost.uncached_tokens > 0) batch_.remove_chunk(0, cost.uncached_tokens);
}

// Tokens that are there, or in the cache, or on the host.
int32_t StepBuilder::context_of(Slot slot) const {
  const RequestTable& requests = snapshot_->requests;
  if (requests.state[slot] != RequestState::kWaiting) return requests.num_computed_tokens[slot];
  const auto known = requests.known_tokens(slot);
  const int32_t num_blocks =
      snapshot_->memory.num_cached_blocks(requests.cache_salt[slot], known.first(known.size() - 1));
  const int32_t num_there = num_blocks * snapshot_->memory.block_size() + requests.num_loadable_tokens[slot];
  return std::max(num_there, requests.num_saved_tokens[slot]);
}

// Of what the request loads during its first step.
double StepBuilder::copy_seconds(Slot slot) const {
  const int32_t num_blocks = snapshot_->requests.num_loadable_tokens[slot] / snapshot_->memory.block_size();
  return snapshot_->estimates.transfer_seconds(int64_t{num_blocks} * snapshot_->memory.units_per_block());
}

// By bisection: predicted time grows with the chunk.
int32_t StepBuilder::most_tokens(int64_t context, int32_t num_left) {
  const int32_t most = std::min(num_left, tokens_left_);
  if (most <= 0) return 0;
  const auto fits = [&](int32_t num_tokens) {
    batch_.add_chunk(context, num_tokens);
    const bool is_short = seconds() <= max_seconds_;
    batch_.remove_chunk(context, num_tokens);
    return is_short;
  };
  if (max_seconds_ == std::numeric_limits<double>::infinity() || fits(most)) return most;
  int32_t low = 0;  // fits, or nothing does
  int32_t high = most;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace hocket
