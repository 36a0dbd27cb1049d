// The scheduler and the tiers: when a waiting request is restored instead of computed, and what becomes of it.
//
// A request may be restored twice while it waits: from the disk to the host, then from the host to the device. After
// that it is admitted with what is there, so that a memory that drops what was just restored cannot keep it waiting.
// Between its restore and its admission the blocks are leased: evicted last, and never in anybody's way.
//
// The second way leads through the step itself where nobody is kept waiting by that: where the copies take no longer
// than the step would anyway, or there is nobody else. Then the request is admitted as if its blocks were there. They
// are its row's own until the step is over, and join the prefix cache like what the step computed.

#include <algorithm>

#include "check.h"
#include "latency_model.h"
#include "scheduler.h"

namespace hocket {
namespace {

constexpr int32_t kMaxRestores = 2;          // of a request while it waits
constexpr size_t kLookAhead = 8;             // waiting requests that are looked at before the policy is asked
constexpr double kRoundTripSeconds = 1e-3;   // what a restore costs beside the copies: it ends with a later step
constexpr int32_t kWaitingWeight = 1 << 17;  // of a request's lease: above every session's

}  // namespace

// ---- what was computed ----

// The keys of the request's complete blocks among its first `num_tokens` known ones, and maybe more.
std::span<const BlockKey> Scheduler::update_keys(Slot slot, int32_t num_tokens) {
  auto& keys = requests_.keys[slot];
  const BlockKey root = keys.empty() ? root_key(config_.cache_fingerprint, requests_.cache_salt[slot]) : BlockKey{};
  append_block_keys(root, requests_.known_tokens(slot).first(num_tokens), config_.block_size, &keys);
  return keys;
}

// Blocks [begin, end) of the request have just been indexed.
void Scheduler::save_completed(Slot slot, int32_t begin, int32_t end) {
  const auto keys = update_keys(slot, requests_.num_computed_tokens[slot]);
  const auto blocks = memory_.tables().blocks(requests_.row[slot]);
  tiers_.save(keys.subspan(begin, end - begin), blocks.subspan(begin, end - begin));
}

// ---- restoring ----

Scheduler::RestoreChoice Scheduler::choose_restore(Slot slot) {
  if (!config_.restores_from_tiers() || requests_.num_restores[slot] >= kMaxRestores) return {};
  if (const Session* session = session_of(slot); session != nullptr && session->is_restoring) {
    return {RestoreStep::kLater};
  }
  const auto reusable = requests_.known_tokens(slot).first(requests_.num_tokens[slot] - 1);
  const auto num_blocks = reusable.size() / static_cast<size_t>(config_.block_size);
  const int32_t num_cached = memory_.num_cached_blocks(requests_.cache_salt[slot], reusable);
  const auto keys = update_keys(slot, requests_.num_tokens[slot]).first(num_blocks);
  const Tiers::Extent extent = tiers_.find(keys, num_cached);
  if (extent.num_blocks == 0 && !extent.is_arriving) return {};
  if (extent.num_blocks > 0 && !is_restore_faster(requests_.num_tokens[slot], num_cached, extent)) return {};
  if (extent.is_arriving) return {RestoreStep::kLater};
  const bool is_on_host = extent.num_on_host == extent.num_blocks;
  if (!is_on_host && requests_.num_restores[slot] == 0) {
    return {RestoreStep::kFetch, num_cached, num_cached + extent.num_blocks};
  }
  if (extent.num_on_host == 0) return {};
  return {RestoreStep::kLoad, num_cached, num_cached + extent.num_on_host};
}

// Where times are unknown, moving is believed to be. What is left to compute hides the copies from the host, and never
// what comes from the disk.
bool Scheduler::is_restore_faster(int32_t num_tokens, int32_t num_cached_blocks, const Tiers::Extent& extent) const {
  if (config_.restore == "always") return true;
  const double begin = num_cached_blocks * config_.block_size;
  const double end = begin + extent.num_blocks * config_.block_size;
  const double compute = estimates_.prefill_seconds(begin, end - begin);
  if (compute <= 0) return true;
  const int64_t num_units = int64_t{extent.num_blocks} * config_.units_per_block();
  const int64_t num_on_disk = num_units - int64_t{extent.num_on_host} * config_.units_per_block();
  const double copies = estimates_.transfer_seconds(num_units);
  const double fetches = num_on_disk > 0 ? estimates_.disk_seconds(num_on_disk) + kRoundTripSeconds : 0.0;
  const double rest = estimates_.prefill_seconds(end, num_tokens - end);
  const double restored = config_.overlap_restores ? Estimates::overlapped_seconds(rest, copies, config_.num_groups())
                                                   : rest + copies + kRoundTripSeconds;
  return fetches + restored < rest + compute;
}

// Online requests at the head of the list are restored as soon as they fit, before the policy gives their tokens a
// place in the step, or offered to the policy with what they could load during the step.
void Scheduler::restore_waiting() {
  candidates_.assign(waiting_.begin(), waiting_.begin() + std::min<std::ptrdiff_t>(std::ssize(waiting_), kLookAhead));
  for (const Slot slot : candidates_) {
    if (requests_.request_class[slot] != kOnlineClass) return;
    const RestoreChoice choice = choose_restore(slot);
    requests_.num_loadable_tokens[slot] = 0;
    if (choice.step == RestoreStep::kFetch) begin_fetch(slot, choice);
    if (choice.step != RestoreStep::kLoad) continue;
    if (can_overlap(slot, choice, {})) {
      requests_.num_loadable_tokens[slot] = (choice.end - choice.begin) * config_.block_size;
      continue;
    }
    memory_.open(requests_.cache_salt[slot], requests_.known_tokens(slot));
    const bool fits = memory_.fits(static_cast<int32_t>(running_.size()));
    const int32_t num_units = memory_.num_open_units();
    memory_.close();
    if (!fits) return;
    begin_load(slot, choice, num_units);
  }
}

void Scheduler::begin_fetch(Slot slot, const RestoreChoice& choice) {
  const std::span<const BlockKey> keys = requests_.keys[slot];
  tiers_.touch(keys.first(choice.end));
  const auto wanted = keys.subspan(choice.begin, choice.end - choice.begin);
  const int32_t num_fetched = tiers_.fetch(wanted, {false, slot, requests_.sequence[slot]});
  requests_.num_fetched_tokens[slot] += num_fetched * config_.block_size;
  if (num_fetched > 0) {
    wait_for_restore(slot);
  } else {
    ++requests_.num_restores[slot];  // no host slot is free: it takes what is there
  }
}

// num_open_units: what the request needs beside what is cached; kept for it until it is back in the waiting list.
void Scheduler::begin_load(Slot slot, const RestoreChoice& choice, int32_t num_open_units) {
  const auto tokens = requests_.known_tokens(slot).first(static_cast<size_t>(choice.end) * config_.block_size);
  const int32_t num_blocks = choice.end - choice.begin;
  const int32_t num_rest = std::max(0, num_open_units - num_blocks * config_.units_per_block());
  const bool is_online = requests_.request_class[slot] == kOnlineClass;
  tiers_.load(requests_.cache_salt[slot], tokens, requests_.keys[slot], is_online, num_rest,
              {false, slot, requests_.sequence[slot]});
  note_load(slot, choice, estimates_.transfer_seconds(int64_t{num_blocks} * config_.units_per_block()));
  wait_for_restore(slot);
}

// copy_seconds: that it waits for.
void Scheduler::note_load(Slot slot, const RestoreChoice& choice, double copy_seconds) {
  const int32_t num_tokens = (choice.end - choice.begin) * config_.block_size;
  requests_.num_loaded_tokens[slot] += num_tokens;
  const double compute = estimates_.prefill_seconds(choice.begin * config_.block_size, num_tokens);
  requests_.seconds_saved[slot] += std::max(0.0, compute - copy_seconds);
}

// ---- restoring during the step ----

bool Scheduler::can_overlap(Slot slot, const RestoreChoice& choice, CacheForm form) const {
  // What is projected in this step is read while it runs, from units that the copies might be given.
  if (!config_.overlap_restores || form != CacheForm{} || !plan_.projections.empty()) return false;
  if (running_.empty() && waiting_.size() == 1) return true;
  int64_t num_blocks = choice.end - choice.begin;
  for (const StepLoad& load : step_loads_) num_blocks += load.end - load.begin;
  return estimates_.transfer_seconds(num_blocks * config_.units_per_block()) <=
         seconds_with(slot, choice.end * config_.block_size);
}

// Of a step with everybody who runs and with what is left of the request; 0: unknown.
double Scheduler::seconds_with(Slot slot, int32_t num_computed) const {
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
  for (const Slot other : running_) add(requests_.num_computed_tokens[other], requests_.num_uncomputed_tokens(other));
  add(num_computed, requests_.num_tokens[slot] - num_computed);
  return estimates_.latency.predict(features);
}

// REQUIRES: the request has just been seated.
void Scheduler::begin_step_load(Slot slot, const RestoreChoice& choice) {
  const bool is_there = memory_.grow(requests_.row[slot], choice.end * config_.block_size);
  HOCKET_CHECK(is_there, "a request has less memory than it was promised");
  tiers_.hold(std::span(requests_.keys[slot]).subspan(choice.begin, choice.end - choice.begin));
  step_loads_.push_back({slot, choice.begin, choice.end});
  ++counters_.num_restores;
}

// The request gives way in the very step that it was admitted for.
void Scheduler::drop_step_load(Slot slot) {
  const auto load = std::ranges::find(step_loads_, slot, &StepLoad::slot);
  if (load == step_loads_.end()) return;
  tiers_.let_go(std::span(requests_.keys[slot]).subspan(load->begin, load->end - load->begin));
  step_loads_.erase(load);
}

void Scheduler::write_step_loads() {
  for (const auto& [slot, begin, end, is_return] : step_loads_) {
    HOCKET_CHECK(requests_.num_scheduled_tokens[slot] > 0, "blocks are loaded for a step without their request");
    const auto blocks = memory_.tables().blocks(requests_.row[slot]);
    tiers_.load_for_step(std::span(requests_.keys[slot]).subspan(begin, end - begin),
                         blocks.subspan(begin, end - begin));
  }
}

void Scheduler::wait_for_restore(Slot slot) {
  dequeue(slot);
  requests_.num_loadable_tokens[slot] = 0;
  requests_.state[slot] = RequestState::kRestoring;
  restoring_.push_back(slot);
}

// What was restored is kept by a lease until the request is admitted.
void Scheduler::end_restore(Slot slot) {
  std::erase(restoring_, slot);
  requests_.state[slot] = RequestState::kWaiting;
  ++requests_.num_restores[slot];
  ++counters_.num_restores;
  enqueue(slot);
  drop_lease(slot);
  requests_.num_leased_tokens[slot] = requests_.num_cached_hint[slot];
  memory_.add_lease(requests_.cache_salt[slot], requests_.known_tokens(slot).first(requests_.num_leased_tokens[slot]),
                    kWaitingWeight);
}

void Scheduler::drop_lease(Slot slot) {
  if (requests_.num_leased_tokens[slot] == 0) return;
  memory_.add_lease(requests_.cache_salt[slot], requests_.known_tokens(slot).first(requests_.num_leased_tokens[slot]),
                    -kWaitingWeight);
  requests_.num_leased_tokens[slot] = 0;
}

void Scheduler::complete_moves(std::span<const int32_t> done, std::span<const int32_t> failed) {
  restored_.clear();
  tiers_.complete(done, failed, &restored_);
  for (const RestoreOwner& owner : restored_) {
    if (owner.is_session) {
      if (sessions_.is_live(owner.index, owner.serial)) sessions_[owner.index].is_restoring = false;
      continue;
    }
    const bool is_there = requests_.sequence[owner.index] == owner.serial;
    if (is_there && requests_.state[owner.index] == RequestState::kRestoring) end_restore(owner.index);
  }
}

// At the first admission: where the cached tokens were found.
void Scheduler::count_hits(Slot slot, int32_t num_cached_tokens) {
  const int32_t num_loaded = std::min(num_cached_tokens, requests_.num_loaded_tokens[slot]);
  const int32_t num_fetched = std::min(num_loaded, requests_.num_fetched_tokens[slot]);
  counters_.num_hit_tokens[0] += num_cached_tokens - num_loaded;
  counters_.num_hit_tokens[1] += num_loaded - num_fetched;
  counters_.num_hit_tokens[2] += num_fetched;
  counters_.restore_seconds_saved += requests_.seconds_saved[slot];
}

}  // namespace hocket
