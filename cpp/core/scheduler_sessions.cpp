// The scheduler and sessions: what an announced request will find in the cache when it comes.
//
//   announced   The session's target (its draft, or the tokens of its last request) is leased as far as it is cached.
//   active      In every step, what is missing comes from the disk to the host, then from the host to the device, where
//               there is room that nobody is expected to need; then the rest of a draft is computed, a chunk at a time,
//               in what the step leaves over. A chunk takes a row for its step only: what it computed is in the prefix
//               cache, and leased, so that a draft never holds what others need.
//   over        The request comes, the lease ends, or the announcement is taken back. What is cached stays, as ordinary
//               cached blocks.
//
// Leased blocks are evicted after all others, the smallest session's first and of each its last blocks first (Symphony
// section 3): memory is taken back at once. No lease keeps anybody waiting.

#include <algorithm>

#include "check.h"
#include "class_order.h"
#include "plan_features.h"
#include "scheduler.h"

namespace hocket {
namespace {

constexpr int32_t kMaxRestores = 2;  // of an announcement: from the disk, then from the host
constexpr size_t kMaxActive = 8;     // sessions that are looked at in a step, first come first served
constexpr int32_t kBlindChunk = 64;  // tokens of a draft beside others while step times are unknown

}  // namespace

// ---- requests of sessions ----

void Scheduler::join_session(Slot slot, const RequestSpec& spec) {
  const SessionName name{spec.tenant, spec.cache_salt, spec.session_id};
  SessionId id = sessions_.find(name);
  if (id == kNone) {
    if (const SessionId oldest = sessions_.least_recent_if_full(); oldest != kNone) {
      end_announcement(oldest);
      sessions_.remove(oldest);
    }
    id = sessions_.add(name);
  }
  requests_.session[slot] = id;
  requests_.session_serial[slot] = sessions_[id].serial;
  Session& session = sessions_[id];
  drop_draft(&session);
  if (!session.is_leased || session.is_answered) return;
  session.is_answered = true;
  ++counters_.num_announced_requests;
  counters_.lead_seconds += std::max(0.0, spec.arrival_time - session.announced_at);
  session.num_prepared_tokens = 0;
}

Session* Scheduler::session_of(Slot slot) {
  const SessionId id = requests_.session[slot];
  return sessions_.is_live(id, requests_.session_serial[slot]) ? &sessions_[id] : nullptr;
}

// From here on the request itself keeps what was leased for it.
void Scheduler::note_admission(Slot slot) {
  if (session_of(slot) != nullptr) end_announcement(requests_.session[slot]);
}

void Scheduler::remember(Slot slot) {
  if (tiers_.is_enabled()) {
    const auto num_blocks = static_cast<size_t>(requests_.num_computed_tokens[slot] / config_.block_size);
    const std::span<const BlockKey> keys = requests_.keys[slot];
    tiers_.touch(keys.first(std::min(num_blocks, keys.size())));
  }
  Session* session = session_of(slot);
  const auto computed = requests_.computed_tokens(slot);
  if (session == nullptr || computed.empty()) return;
  session->tokens.assign(computed.begin(), computed.end());
  if (session->is_leased) retarget(requests_.session[slot]);  // announced while this request was running
}

// ---- announcements ----

SessionReport Scheduler::advise(const AdvisorySpec& spec, double now) {
  SessionReport result;
  const SessionId id = sessions_.find(spec.session);
  if (id == kNone) return result;
  Session& session = sessions_[id];
  result.is_known = true;
  switch (spec.event) {
    case AdvisoryEvent::kTyping:
    case AdvisoryEvent::kAgentStep:
      if (!set_draft(&session, spec.draft)) {
        result.action = SessionAction::kRefused;
        break;
      }
      announce(id, spec.lease_seconds, now);
      result.action = plan_for(session);
      break;
    case AdvisoryEvent::kCancel:
    case AdvisoryEvent::kRelease:
      end_announcement(id);
      result.action = SessionAction::kRelease;
      break;
    case AdvisoryEvent::kQuery:
      break;
  }
  report(session, now, &result);
  if (spec.event == AdvisoryEvent::kRelease) sessions_.remove(id);
  return result;
}

// Complete blocks and one token more, which is not computed: that is what the request itself will begin with. False if
// no request could have that prompt.
bool Scheduler::set_draft(Session* session, std::span<const int32_t> draft) {
  const bool is_negative = std::ranges::any_of(draft, [](int32_t token) { return token < 0; });
  const auto num_tokens = static_cast<int64_t>(draft.size());
  if (is_negative || num_tokens + 2 > config_.max_model_len) return false;
  if (num_tokens > 0 && config_.blocks_for(static_cast<int32_t>(num_tokens) + 1) > memory_.num_kv_blocks())
    return false;
  const auto num_complete = draft.size() / static_cast<size_t>(config_.block_size) * config_.block_size;
  const bool is_same = num_complete > 0 && session->draft.size() == num_complete + 1 &&
                       std::ranges::equal(draft.first(num_complete), std::span(session->draft).first(num_complete));
  if (is_same) return true;
  drop_draft(session);
  session->draft.assign(draft.begin(), draft.begin() + static_cast<std::ptrdiff_t>(num_complete));
  if (num_complete > 0) session->draft.push_back(0);
  return true;
}

void Scheduler::announce(SessionId id, double lease_seconds, double now) {
  Session& session = sessions_[id];
  if (!session.is_leased) {
    session.is_leased = true;
    session.is_answered = false;
    session.announced_at = now;
    ++num_leases_;
    ++counters_.num_announcements;
  }
  session.lease_end = now + lease_seconds;
  next_lease_end_ = std::min(next_lease_end_, session.lease_end);
  retarget(id);
}

void Scheduler::retarget(SessionId id) {
  Session& session = sessions_[id];
  session.num_restores = 0;
  session.keys.clear();
  if (tiers_.is_enabled()) {
    append_block_keys(root_key(config_.cache_fingerprint, session.salt), session.target(config_.block_size),
                      config_.block_size, &session.keys);
  }
  renew_lease(&session);
  if (session.is_active) return;
  session.is_active = true;
  active_sessions_.push_back(id);
}

void Scheduler::end_announcement(SessionId id) {
  Session& session = sessions_[id];
  drop_draft(&session);
  if (session.is_leased) {
    session.is_leased = false;
    --num_leases_;
    counters_.num_wasted_tokens += session.num_prepared_tokens;
    session.num_prepared_tokens = 0;
    memory_.add_lease(session.salt, session.leased, -session.lease_weight);
    session.leased.clear();
  }
  session.draft.clear();
  if (session.is_active) std::erase(active_sessions_, id);
  session.is_active = false;
}

// The lease covers what is cached of the target by now. It weighs as many blocks as the target has, so that one session
// is given up as a whole before the next larger one is touched.
void Scheduler::renew_lease(Session* session) {
  const auto target = session->target(config_.block_size);
  const auto num_cached = static_cast<size_t>(memory_.num_cached_blocks(session->salt, target)) * config_.block_size;
  memory_.add_lease(session->salt, session->leased, -session->lease_weight);
  session->leased.assign(target.begin(), target.begin() + static_cast<std::ptrdiff_t>(num_cached));
  session->lease_weight = static_cast<int32_t>(target.size()) / config_.block_size;
  memory_.add_lease(session->salt, session->leased, session->lease_weight);
}

SessionAction Scheduler::plan_for(const Session& session) const {
  const auto target = session.target(config_.block_size);
  const auto num_blocks = static_cast<int32_t>(target.size()) / config_.block_size;
  const int32_t num_cached = memory_.num_cached_blocks(session.salt, target);
  if (num_cached == num_blocks) return num_blocks > 0 ? SessionAction::kPin : SessionAction::kNone;
  const int32_t num_there = num_cached + tiers_.find(session.keys, num_cached).num_blocks;
  const bool has_work = num_there > num_cached || !session.draft.empty();
  if (!has_work) return num_cached > 0 ? SessionAction::kPin : SessionAction::kNone;
  if (!memory_.has_room_for(1, static_cast<int32_t>(running_.size()))) return SessionAction::kRefused;
  const bool is_computed = !session.draft.empty() && num_there < num_blocks;
  return is_computed ? SessionAction::kDraftPrefill : SessionAction::kPrefetch;
}

void Scheduler::report(const Session& session, double now, SessionReport* report) const {
  report->num_tokens = static_cast<int32_t>(session.tokens.size());
  const auto target = session.target(config_.block_size);
  const int32_t num_cached = memory_.num_cached_blocks(session.salt, target);
  report->tier_tokens[0] = num_cached * config_.block_size;
  if (tiers_.is_enabled()) {
    std::vector<BlockKey> keys;
    append_block_keys(root_key(config_.cache_fingerprint, session.salt), target, config_.block_size, &keys);
    for (const BlockKey& key : std::span(keys).subspan(num_cached)) {
      const EntryId entry = tiers_.index().find(key);
      if (entry == kNone) continue;
      report->tier_tokens[tiers_.index().host_slot(entry) != kNone ? 1 : 2] += config_.block_size;
    }
  }
  if (session.is_leased) report->lease_seconds = std::max(0.0, session.lease_end - now);
}

// ---- steps ----

// After everybody else has got what the step gives.
void Scheduler::advance_sessions() {
  if (next_lease_end_ <= now_) {
    next_lease_end_ = kNever;
    for (SessionId id = 0; id < sessions_.end(); ++id) {
      if (!sessions_[id].is_leased) continue;
      if (sessions_[id].lease_end <= now_) {
        end_announcement(id);
      } else {
        next_lease_end_ = std::min(next_lease_end_, sessions_[id].lease_end);
      }
    }
  }
  size_t num_seen = 0;
  std::erase_if(active_sessions_, [&](SessionId id) {
    if (num_seen++ < kMaxActive) sessions_[id].is_active = advance(id);
    return !sessions_[id].is_active;
  });
  if (budget_ == 0 || !grant_draft()) return;
  writer_.write(requests_, running_, &plan_);
  write_forms();
}

// False if there is nothing left to do for the session.
bool Scheduler::advance(SessionId id) {
  Session& session = sessions_[id];
  if (session.is_restoring) return true;
  const auto target = session.target(config_.block_size);
  const int32_t num_cached = memory_.num_cached_blocks(session.salt, target);
  if (static_cast<size_t>(num_cached) * config_.block_size != session.leased.size()) renew_lease(&session);
  if (num_cached == static_cast<int32_t>(target.size()) / config_.block_size) return false;
  return restore_session(id, num_cached) || begin_draft(id);
}

// False if other tiers have nothing to add.
bool Scheduler::restore_session(SessionId id, int32_t num_cached) {
  Session& session = sessions_[id];
  if (!config_.restores_from_tiers() || session.num_restores >= kMaxRestores) return false;
  const Tiers::Extent extent = tiers_.find(session.keys, num_cached);
  if (extent.num_blocks == 0) return extent.is_arriving;
  const RestoreOwner owner{true, id, session.serial};
  const auto keys = std::span<const BlockKey>(session.keys);
  if (extent.num_on_host < extent.num_blocks && session.num_restores == 0) {
    ++session.num_restores;
    tiers_.touch(keys.first(num_cached + extent.num_blocks));
    session.is_restoring = tiers_.fetch(keys.subspan(num_cached, extent.num_blocks), owner) > 0;
    return true;
  }
  if (extent.num_on_host == 0) return false;
  if (!memory_.has_room_for(extent.num_on_host, static_cast<int32_t>(running_.size()))) return true;
  session.num_restores = kMaxRestores;
  const auto tokens = session.target(config_.block_size);
  const auto end = static_cast<size_t>(num_cached + extent.num_on_host) * config_.block_size;
  tiers_.load(session.salt, tokens.first(end), keys, true, 0, owner);
  session.is_restoring = true;
  const int32_t num_tokens = extent.num_on_host * config_.block_size;
  session.num_prepared_tokens += num_tokens;
  counters_.num_prepared_tokens += num_tokens;
  return true;
}

// ---- drafts ----

// False if there is no draft.
bool Scheduler::begin_draft(SessionId id) {
  Session& session = sessions_[id];
  if (session.draft.empty()) return false;
  if (session.draft_slot != kNone) return true;
  RequestSpec spec;
  spec.id = kDraftIds + num_drafts_++;
  spec.prompt = session.draft;
  spec.request_class = kAdvisoryClass;
  spec.arrival_time = now_;
  spec.cache_salt = session.salt;
  const Slot slot = requests_.add(spec, config_.max_model_len);
  requests_.is_draft[slot] = 1;
  requests_.state[slot] = RequestState::kDraft;
  requests_.session[slot] = id;
  requests_.session_serial[slot] = session.serial;
  if (offline_) offline_->add(slot);
  session.draft_slot = slot;
  return true;
}

// One that is in the open plan ends with its commit.
void Scheduler::drop_draft(Session* session) {
  const Slot slot = session->draft_slot;
  if (slot == kNone) return;
  session->draft_slot = kNone;
  requests_.is_aborted[slot] = 1;
  if (requests_.state[slot] == RequestState::kRunning) return;
  requests_.forget_id(slot);
  requests_.free(slot);
}

// Gives a chunk of the first draft that has one to the step; false if none has.
bool Scheduler::grant_draft() {
  const auto has_draft = [&](SessionId id) { return sessions_[id].draft_slot != kNone && !sessions_[id].is_restoring; };
  const auto found = std::ranges::find_if(active_sessions_, has_draft);
  if (found == active_sessions_.end()) return false;
  const Slot slot = sessions_[*found].draft_slot;
  const auto known = requests_.known_tokens(slot);
  const std::string& salt = requests_.cache_salt[slot];
  const int32_t num_cached = memory_.num_cached_blocks(salt, known.first(known.size() - 1)) * config_.block_size;
  const int32_t chunk = draft_chunk(slot, num_cached);
  const int32_t num_blocks = chunk / config_.block_size;
  const auto num_running = static_cast<int32_t>(running_.size());
  if (chunk <= 0 || !memory_.has_room_for(num_blocks, num_running)) return false;
  memory_.open(salt, known.first(static_cast<size_t>(num_cached + chunk)), {}, /*is_online=*/false);
  if (!memory_.fits(num_running)) {
    memory_.close();
    return false;
  }
  running_.push_back(slot);
  requests_.state[slot] = RequestState::kRunning;
  requests_.row[slot] = memory_.seat();
  requests_.num_computed_tokens[slot] = num_cached;
  HOCKET_CHECK(memory_.grow(requests_.row[slot], num_cached + chunk), "a draft has less memory than it was promised");
  requests_.num_scheduled_tokens[slot] = chunk;
  budget_ -= chunk;
  return true;
}

// Complete blocks, so that nothing is computed twice, and no more than the step has time for.
int32_t Scheduler::draft_chunk(Slot slot, int32_t num_cached) const {
  const int32_t num_left = requests_.num_tokens[slot] - 1 - num_cached;
  int32_t num_blocks = std::min(num_left, budget_) / config_.block_size;
  if (plan_.empty()) return num_blocks * config_.block_size;
  if (!estimates_.knows_latency()) num_blocks = std::min(num_blocks, std::max(1, kBlindChunk / config_.block_size));
  const double limit = std::min(config_.max_offline_step_ms / 1000, seconds_before_deadline(snapshot(), running_));
  const BatchFeatures features = plan_features(plan_);
  const auto seconds_with = [&](int32_t num_tokens) {
    BatchFeatures with = features;
    with.add_chunk(num_cached, num_tokens);
    return estimates_.latency.predict(with);
  };
  while (num_blocks > 0 && seconds_with(num_blocks * config_.block_size) > limit) num_blocks /= 2;
  return num_blocks * config_.block_size;
}

// Its chunk is in the prefix cache; the row is free again.
void Scheduler::end_draft_step(Slot slot) {
  Session* session = session_of(slot);
  const int32_t num_computed = requests_.num_last_scheduled[slot];
  memory_.release(requests_.row[slot]);
  requests_.row[slot] = kNone;
  counters_.num_prepared_tokens += num_computed;
  const bool is_complete = requests_.num_computed_tokens[slot] + 1 == requests_.num_tokens[slot];
  requests_.num_computed_tokens[slot] = 0;
  requests_.state[slot] = RequestState::kDraft;
  if (session != nullptr && !requests_.is_aborted[slot]) {
    session->num_prepared_tokens += num_computed;
    renew_lease(session);
    if (!is_complete) return;
    session->draft_slot = kNone;
  }
  requests_.forget_id(slot);
  requests_.free(slot);
}

}  // namespace hocket
