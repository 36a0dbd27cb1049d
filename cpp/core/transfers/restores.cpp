#include "transfers/restores.h"

#include <algorithm>

#include "base/check.h"
#include "estimates/latency_model.h"

namespace hocket {
namespace {

constexpr size_t kLookAhead = 8;             // waiting requests that are looked at before the policy is asked
constexpr double kRoundTripSeconds = 1e-3;   // what a restore costs beside the copies: it ends with a later step
constexpr double kPeerSeconds = 1e-2;        // the same where it has to be asked of a peer
constexpr int32_t kWaitingWeight = 1 << 17;  // of a request's lease: above every session's

}  // namespace

Restores::Restores(SchedulerState* state, Announcements* announcements, StepLoads* loads)
    : state_(*state),
      config_(state->config),
      estimates_(state->estimates),
      memory_(state->memory),
      tiers_(state->tiers),
      requests_(state->requests),
      counters_(state->counters),
      announcements_(*announcements),
      loads_(*loads),
      of_(&state->requests) {
  restoring_.reserve(state->config.max_num_seqs);
}

// ---- what a request waits for ----

void Restores::before_policy() {
  const auto& waiting = state_.waiting;
  candidates_.assign(waiting.begin(), waiting.begin() + std::min<std::ptrdiff_t>(std::ssize(waiting), kLookAhead));
  for (const Slot slot : candidates_) {
    if (requests_.request_class[slot] != kOnlineClass) return;
    const Choice choice = choose(slot);
    requests_.num_loadable_tokens[slot] = 0;
    if (choice.way == RestoreWay::kFetch) begin_fetch(slot, choice);
    if (choice.way != RestoreWay::kLoad) continue;
    if (can_overlap(slot, choice)) {
      requests_.num_loadable_tokens[slot] = (choice.end - choice.begin) * config_.block_size;
      continue;
    }
    memory_.open(requests_.cache_salt[slot], requests_.known_tokens(slot));
    const bool fits = memory_.fits(state_.num_running());
    const int32_t num_units = memory_.num_open_units();
    memory_.close();
    if (!fits) return;
    begin_load(slot, choice, num_units);
  }
}

Restores::Choice Restores::choose(Slot slot, CacheForm form) {
  if (!config_.restores_from_tiers() || form != CacheForm{} || of_[slot].num_restores >= Tiers::kMaxRestores) return {};
  if (config_.save_sessions_only && !announcements_.is_of_session(slot)) return {};
  if (announcements_.is_restoring(slot) && !announcements_.is_pulling(slot)) return {RestoreWay::kLater};
  const auto reusable = requests_.known_tokens(slot).first(requests_.num_tokens[slot] - 1);
  const auto num_blocks = reusable.size() / static_cast<size_t>(config_.block_size);
  const int32_t num_cached = memory_.num_cached_blocks(requests_.cache_salt[slot], reusable);
  const auto keys = state_.update_keys(slot, requests_.num_tokens[slot]).first(num_blocks);
  const Tiers::Extent extent = tiers_.find(keys, num_cached);
  if (extent.num_blocks == 0 && !extent.is_arriving) return {};
  if (extent.num_blocks > 0 && !is_faster(requests_.num_tokens[slot], num_cached, extent)) return {};
  if (extent.is_arriving && is_worth_waiting(extent, num_cached, static_cast<int32_t>(num_blocks))) {
    return {RestoreWay::kLater};
  }
  const RestoreWay way = Tiers::next_way(extent, of_[slot].num_restores);
  return {way, num_cached, num_cached + (way == RestoreWay::kFetch ? extent.num_blocks : extent.num_on_host)};
}

// Where times are unknown, moving is believed to be. What is left to compute hides the copies from the host, and never
// what comes from the disk or from peers.
bool Restores::is_faster(int32_t num_tokens, int32_t num_cached_blocks, const Tiers::Extent& extent) const {
  if (config_.restore == "always") return true;
  const double begin = num_cached_blocks * config_.block_size;
  const double end = begin + extent.num_blocks * config_.block_size;
  const double compute = estimates_.prefill_seconds(begin, end - begin);
  if (compute <= 0) return true;
  const int64_t num_units = int64_t{extent.num_blocks} * config_.units_per_block();
  const int64_t num_elsewhere = int64_t{extent.num_on_host} + extent.num_on_peers;
  const int64_t num_on_disk = num_units - num_elsewhere * config_.units_per_block();
  const double copies = estimates_.transfer_seconds(num_units);
  double fetches = num_on_disk > 0 ? estimates_.disk_seconds(num_on_disk) + kRoundTripSeconds : 0.0;
  if (extent.num_on_peers > 0) fetches += tiers_.pull_seconds(extent.num_on_peers, extent.peer) + kPeerSeconds;
  const double rest = estimates_.prefill_seconds(end, num_tokens - end);
  const double restored = config_.overlap_restores ? Estimates::overlapped_seconds(rest, copies, config_.num_groups())
                                                   : rest + copies + kRoundTripSeconds;
  return fetches + restored < rest + compute;
}

// What comes from a peer may take long, and the peer may die: it is waited for only while computing takes longer. What
// comes from elsewhere is soon there.
bool Restores::is_worth_waiting(const Tiers::Extent& extent, int32_t begin, int32_t num_blocks) const {
  if (extent.peer == kNone || config_.restore == "always") return true;
  const int32_t first = begin + extent.num_blocks;
  const double num_tokens = (num_blocks - first) * config_.block_size;
  const double compute = estimates_.prefill_seconds(first * config_.block_size, num_tokens);
  return compute <= 0 || tiers_.pull_seconds(0, extent.peer) < compute;
}

void Restores::begin_fetch(Slot slot, const Choice& choice) {
  const std::span<const BlockKey> keys = requests_.keys[slot];
  tiers_.touch(keys.first(choice.end));
  const auto wanted = keys.subspan(choice.begin, choice.end - choice.begin);
  const int32_t num_fetched = tiers_.fetch(wanted, {false, slot, requests_.sequence[slot]});
  of_[slot].num_fetched_tokens += num_fetched * config_.block_size;
  if (num_fetched > 0) {
    begin_waiting(slot);
  } else {
    ++of_[slot].num_restores;  // no host slot is free: it takes what is there
  }
}

void Restores::begin_load(Slot slot, const Choice& choice, int32_t num_open_units) {
  const auto tokens = requests_.known_tokens(slot).first(static_cast<size_t>(choice.end) * config_.block_size);
  const int32_t num_blocks = choice.end - choice.begin;
  const int32_t num_rest = std::max(0, num_open_units - num_blocks * config_.units_per_block());
  const bool is_online = requests_.request_class[slot] == kOnlineClass;
  tiers_.load(requests_.cache_salt[slot], tokens, requests_.keys[slot], is_online, num_rest,
              {false, slot, requests_.sequence[slot]});
  note_load(slot, choice, estimates_.transfer_seconds(int64_t{num_blocks} * config_.units_per_block()));
  begin_waiting(slot);
}

void Restores::note_load(Slot slot, const Choice& choice, double copy_seconds) {
  const int32_t num_tokens = (choice.end - choice.begin) * config_.block_size;
  of_[slot].num_loaded_tokens += num_tokens;
  const double compute = estimates_.prefill_seconds(choice.begin * config_.block_size, num_tokens);
  of_[slot].seconds_saved += std::max(0.0, compute - copy_seconds);
}

void Restores::begin_waiting(Slot slot) {
  state_.dequeue(slot);
  requests_.num_loadable_tokens[slot] = 0;
  requests_.state[slot] = RequestState::kRestoring;
  restoring_.push_back(slot);
}

// What was restored is kept by a lease until the request is admitted.
void Restores::end(Slot slot) {
  std::erase(restoring_, slot);
  requests_.state[slot] = RequestState::kWaiting;
  ++of_[slot].num_restores;
  ++counters_.num_restores;
  state_.enqueue(slot);
  drop_lease(slot);
  of_[slot].num_leased_tokens = requests_.num_cached_hint[slot];
  memory_.add_lease(requests_.cache_salt[slot], requests_.known_tokens(slot).first(of_[slot].num_leased_tokens),
                    kWaitingWeight);
}

void Restores::drop_lease(Slot slot) {
  if (of_[slot].num_leased_tokens == 0) return;
  memory_.add_lease(requests_.cache_salt[slot], requests_.known_tokens(slot).first(of_[slot].num_leased_tokens),
                    -kWaitingWeight);
  of_[slot].num_leased_tokens = 0;
}

void Restores::complete(std::span<const int32_t> done, std::span<const int32_t> failed) {
  restored_.clear();
  tiers_.complete(done, failed, &restored_);
  for (const RestoreOwner& owner : restored_) {
    if (owner.is_session) {
      announcements_.end_restore(owner);
      continue;
    }
    const bool is_there = requests_.sequence[owner.index] == owner.serial;
    if (is_there && requests_.state[owner.index] == RequestState::kRestoring) end(owner.index);
  }
}

// ---- during the step ----

bool Restores::can_overlap(Slot slot, const Choice& choice) const {
  // What is projected or rounded in this step is read when it begins, from units that the copies might be given.
  const FormPlan& forms = state_.plan.forms;
  if (!config_.overlap_restores || !forms.projections.empty() || !forms.roundings.empty()) return false;
  if (state_.running.empty() && state_.waiting.size() == 1) return true;
  const int64_t num_blocks = choice.end - choice.begin + loads_.num_blocks();
  return estimates_.transfer_seconds(num_blocks * config_.units_per_block()) <=
         seconds_with(slot, choice.end * config_.block_size);
}

// Of a step with everybody who runs and with what is left of the request; 0: unknown.
double Restores::seconds_with(Slot slot, int32_t num_computed) const {
  BatchFeatures features;
  int32_t budget = config_.max_num_batched_tokens;
  const auto add = [&](int32_t context, int32_t num_left) {
    const int32_t n = std::min(num_left, budget);
    if (n == 1) {
      features.add_decode(context + 1);
    } else if (n > 1) {
      features.add_chunk(context, n);
    }
    budget -= n;
  };
  for (const Slot other : state_.running) {
    add(requests_.num_computed_tokens[other], requests_.num_uncomputed_tokens(other));
  }
  add(num_computed, requests_.num_tokens[slot] - num_computed);
  return estimates_.latency.predict(features);
}

void Restores::begin_step_load(Slot slot, const Choice& choice) {
  const bool is_there = memory_.grow(requests_.row[slot], choice.end * config_.block_size);
  HOCKET_CHECK(is_there, "a request has less memory than it was promised");
  loads_.add({slot, choice.begin, choice.end});
  ++counters_.num_restores;
}

// ---- what becomes of requests ----

void Restores::on_seated(Slot slot) {
  requests_.num_loadable_tokens[slot] = 0;
  drop_lease(slot);
}

void Restores::on_preempted(Slot slot) {
  loads_.drop(slot);
  of_[slot].num_restores = 0;
}

void Restores::count_hits(Slot slot, int32_t num_cached_tokens) {
  const int32_t num_loaded = std::min(num_cached_tokens, of_[slot].num_loaded_tokens);
  const int32_t num_fetched = std::min(num_loaded, of_[slot].num_fetched_tokens);
  counters_.num_hit_tokens[0] += num_cached_tokens - num_loaded;
  counters_.num_hit_tokens[1] += num_loaded - num_fetched;
  counters_.num_hit_tokens[2] += num_fetched;
  counters_.restore_seconds_saved += of_[slot].seconds_saved;
}

}  // namespace hocket
