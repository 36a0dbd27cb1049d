#include "sessions/announcements.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "offline/plan_features.h"
#include "stages/class_order.h"

namespace hocket {
namespace {

constexpr size_t kMaxActive = 8;     // sessions that are looked at in a step, first come first served
constexpr int32_t kBlindChunk = 64;  // tokens of a draft beside others while step times are unknown

}  // namespace

Announcements::Announcements(SchedulerState* state)
    : state_(*state),
      config_(state->config),
      estimates_(state->estimates),
      memory_(state->memory),
      tiers_(state->tiers),
      requests_(state->requests),
      counters_(state->counters),
      sessions_(state->config.max_num_sessions),
      of_(&state->requests) {}

// ---- requests of sessions ----

void Announcements::on_added(Slot slot, const RequestSpec& spec) {
  const SessionName name{spec.tenant, spec.cache_salt, spec.session_id};
  SessionId id = sessions_.find(name);
  if (id == kNone) id = add_making_room(name);
  of_[slot].session = id;
  of_[slot].serial = sessions_[id].serial;
  Session& session = sessions_[id];
  drop_draft(&session);
  if (!session.is_leased || session.is_answered) return;
  session.is_answered = true;
  ++counters_.num_announced_requests;
  session.num_prepared_tokens = 0;
}

SessionId Announcements::add_making_room(const SessionName& name) {
  if (const SessionId oldest = sessions_.least_recent_if_full(name); oldest != kNone) {
    end(oldest);
    sessions_.remove(oldest);
  }
  return sessions_.add(name);
}

bool Announcements::could_compute(const SessionName& name, std::span<const int32_t> tokens) const {
  const bool is_negative = std::ranges::any_of(tokens, [](int32_t token) { return token < 0; });
  if (name.id.empty() || tokens.empty() || is_negative) return false;
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens >= config_.max_model_len) return false;
  return config_.blocks_for(static_cast<int32_t>(num_tokens) + 1) <= memory_.num_kv_blocks();
}

bool Announcements::remember(const SessionName& name, std::span<const int32_t> tokens) {
  if (!could_compute(name, tokens) || sessions_.peek(name) != kNone) return false;
  sessions_[add_making_room(name)].tokens.assign(tokens.begin(), tokens.end());
  return true;
}

bool Announcements::adopt(const SessionName& name, std::span<const int32_t> tokens) {
  if (!could_compute(name, tokens)) return false;
  SessionId id = sessions_.find(name);
  if (id == kNone) id = add_making_room(name);
  Session& session = sessions_[id];
  session.tokens.assign(tokens.begin(), tokens.end());
  if (session.is_leased) retarget(id);
  return true;
}

int32_t Announcements::pull(const SessionName& name) {
  const SessionId id = sessions_.find(name);
  if (id == kNone || !tiers_.is_enabled() || !config_.restores_from_tiers() || sessions_[id].is_restoring) return 0;
  Session& session = sessions_[id];
  const auto target = session.target(config_.block_size);
  std::vector<BlockKey> keys;
  append_block_keys(root_key(config_.cache_fingerprint, session.salt), target, config_.block_size, &keys);
  const auto num_cached = static_cast<size_t>(memory_.num_cached_blocks(session.salt, target));
  // Also beyond blocks that are on their way for another session with the same beginning.
  const int32_t num_moves =
      tiers_.fetch(std::span<const BlockKey>(keys).subspan(num_cached), {true, id, session.serial});
  session.is_restoring = session.is_pulling = num_moves > 0;
  return num_moves;
}

std::span<const int32_t> Announcements::tokens(const SessionName& name) const {
  const SessionId id = sessions_.peek(name);
  return id == kNone ? std::span<const int32_t>() : sessions_[id].tokens;
}

Session* Announcements::session_of(Slot slot) {
  const SessionId id = of_[slot].session;
  return sessions_.is_live(id, of_[slot].serial) ? &sessions_[id] : nullptr;
}

bool Announcements::is_restoring(Slot slot) const {
  const OfRequest of = of_[slot];
  return sessions_.is_live(of.session, of.serial) && sessions_[of.session].is_restoring;
}

bool Announcements::is_pulling(Slot slot) const {
  return is_restoring(slot) && sessions_[of_[slot].session].is_pulling;
}

// From here on the request itself keeps what was leased for it.
void Announcements::on_seated(Slot slot) {
  if (session_of(slot) != nullptr) end(of_[slot].session);
}

void Announcements::on_ended(Slot slot) {
  if (tiers_.is_enabled()) {
    const auto num_blocks = static_cast<size_t>(requests_.num_computed_tokens[slot] / config_.block_size);
    const std::span<const BlockKey> keys = requests_.keys[slot];
    tiers_.touch(keys.first(std::min(num_blocks, keys.size())));
  }
  Session* session = session_of(slot);
  const auto computed = requests_.computed_tokens(slot);
  if (session == nullptr || computed.empty()) return;
  session->tokens.assign(computed.begin(), computed.end());
  if (session->is_leased) retarget(of_[slot].session);  // announced while this request was running
}

// ---- announcements ----

SessionState Announcements::advise(const AdvisorySpec& spec, double now) {
  SessionState result;
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
      end(id);
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
bool Announcements::set_draft(Session* session, std::span<const int32_t> draft) {
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

void Announcements::announce(SessionId id, double lease_seconds, double now) {
  Session& session = sessions_[id];
  if (!session.is_leased) {
    session.is_leased = true;
    session.is_answered = false;
    ++num_leases_;
  }
  session.lease_end = now + lease_seconds;
  next_lease_end_ = std::min(next_lease_end_, session.lease_end);
  retarget(id);
}

void Announcements::retarget(SessionId id) {
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
  active_.push_back(id);
}

void Announcements::end(SessionId id) {
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
  if (session.is_active) std::erase(active_, id);
  session.is_active = false;
}

// The lease covers what is cached of the target by now. It weighs as many blocks as the target has, so that one session
// is given up as a whole before the next larger one is touched.
void Announcements::renew_lease(Session* session) {
  const auto target = session->target(config_.block_size);
  const auto num_cached = static_cast<size_t>(memory_.num_cached_blocks(session->salt, target)) * config_.block_size;
  memory_.add_lease(session->salt, session->leased, -session->lease_weight);
  session->leased.assign(target.begin(), target.begin() + static_cast<std::ptrdiff_t>(num_cached));
  session->lease_weight = static_cast<int32_t>(target.size()) / config_.block_size;
  memory_.add_lease(session->salt, session->leased, session->lease_weight);
}

SessionAction Announcements::plan_for(const Session& session) const {
  const auto target = session.target(config_.block_size);
  const auto num_blocks = static_cast<int32_t>(target.size()) / config_.block_size;
  const int32_t num_cached = memory_.num_cached_blocks(session.salt, target);
  if (num_cached == num_blocks) return num_blocks > 0 ? SessionAction::kPin : SessionAction::kNone;
  const int32_t num_there = num_cached + tiers_.find(session.keys, num_cached).num_blocks;
  const bool has_work = num_there > num_cached || !session.draft.empty();
  if (!has_work) return num_cached > 0 ? SessionAction::kPin : SessionAction::kNone;
  if (!memory_.has_room_for(1, state_.num_running())) return SessionAction::kRefused;
  const bool is_computed = !session.draft.empty() && num_there < num_blocks;
  return is_computed ? SessionAction::kDraftPrefill : SessionAction::kPrefetch;
}

void Announcements::report(const Session& session, double now, SessionState* report) const {
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
      const bool is_on_host = tiers_.index().host_slot(entry) != kNone;
      if (!is_on_host && !tiers_.index().is_on_disk(entry)) continue;  // a peer has it, which is no tier of ours
      report->tier_tokens[is_on_host ? 1 : 2] += config_.block_size;
    }
  }
  if (session.is_leased) report->lease_seconds = std::max(0.0, session.lease_end - now);
}

// ---- steps ----

bool Announcements::advance() {
  if (active_.empty() && next_lease_end_ > state_.now) return false;
  if (next_lease_end_ <= state_.now) end_leases();
  size_t num_seen = 0;
  std::erase_if(active_, [&](SessionId id) {
    if (num_seen++ < kMaxActive) sessions_[id].is_active = advance(id);
    return !sessions_[id].is_active;
  });
  return state_.budget > 0 && grant_draft();
}

void Announcements::end_leases() {
  next_lease_end_ = kNever;
  for (SessionId id = 0; id < sessions_.end(); ++id) {
    if (!sessions_[id].is_leased) continue;
    if (sessions_[id].lease_end <= state_.now) {
      end(id);
    } else {
      next_lease_end_ = std::min(next_lease_end_, sessions_[id].lease_end);
    }
  }
}

// False if there is nothing left to do for the session.
bool Announcements::advance(SessionId id) {
  Session& session = sessions_[id];
  if (session.is_restoring) return true;
  const auto target = session.target(config_.block_size);
  const int32_t num_cached = memory_.num_cached_blocks(session.salt, target);
  if (static_cast<size_t>(num_cached) * config_.block_size != session.leased.size()) renew_lease(&session);
  if (num_cached == static_cast<int32_t>(target.size()) / config_.block_size) return false;
  return restore(id, num_cached) || begin_draft(id);
}

// False if other tiers have nothing to add.
bool Announcements::restore(SessionId id, int32_t num_cached) {
  Session& session = sessions_[id];
  if (!config_.restores_from_tiers() || session.num_restores >= Tiers::kMaxRestores) return false;
  const Tiers::Extent extent = tiers_.find(session.keys, num_cached);
  if (extent.num_blocks == 0) return extent.is_arriving;
  const RestoreOwner owner{true, id, session.serial};
  const auto keys = std::span<const BlockKey>(session.keys);
  const RestoreWay way = Tiers::next_way(extent, session.num_restores);
  if (way == RestoreWay::kFetch) {
    ++session.num_restores;
    tiers_.touch(keys.first(num_cached + extent.num_blocks));
    session.is_restoring = tiers_.fetch(keys.subspan(num_cached, extent.num_blocks), owner) > 0;
    session.is_pulling = session.is_restoring && extent.num_on_peers > 0;
    return true;
  }
  if (way == RestoreWay::kNone) return false;
  if (!memory_.has_room_for(extent.num_on_host, state_.num_running())) return true;
  session.num_restores = Tiers::kMaxRestores;
  const auto tokens = session.target(config_.block_size);
  const auto end = static_cast<size_t>(num_cached + extent.num_on_host) * config_.block_size;
  tiers_.load(session.salt, tokens.first(end), keys, true, 0, owner);
  session.is_restoring = true;
  const int32_t num_tokens = extent.num_on_host * config_.block_size;
  session.num_prepared_tokens += num_tokens;
  counters_.num_prepared_tokens += num_tokens;
  return true;
}

void Announcements::end_restore(const RestoreOwner& owner) {
  if (!sessions_.is_live(owner.index, owner.serial)) return;
  sessions_[owner.index].is_restoring = sessions_[owner.index].is_pulling = false;
}

// ---- drafts ----

// False if there is no draft.
bool Announcements::begin_draft(SessionId id) {
  Session& session = sessions_[id];
  if (session.draft.empty()) return false;
  if (session.draft_slot != kNone) return true;
  RequestSpec spec;
  spec.id = kDraftIds + num_drafts_++;
  spec.prompt = session.draft;
  spec.request_class = kAdvisoryClass;
  spec.arrival_time = state_.now;
  spec.cache_salt = session.salt;
  const Slot slot = requests_.add(spec, config_.max_model_len);
  state_.tenants.on_added(slot, sessions_.tenant(id), true);
  of_[slot].is_draft = true;
  requests_.state[slot] = RequestState::kDraft;
  of_[slot].session = id;
  of_[slot].serial = session.serial;
  if (state_.offline) state_.offline->add(slot);
  session.draft_slot = slot;
  return true;
}

// One that is in the open plan ends with its commit.
void Announcements::drop_draft(Session* session) {
  const Slot slot = session->draft_slot;
  if (slot == kNone) return;
  session->draft_slot = kNone;
  requests_.is_aborted[slot] = 1;
  if (requests_.state[slot] == RequestState::kRunning) return;
  state_.tenants.on_ended(slot);
  requests_.forget_id(slot);
  requests_.free(slot);
}

// Gives a chunk of the first draft that has one to the step; false if none has.
bool Announcements::grant_draft() {
  const auto has_draft = [&](SessionId id) { return sessions_[id].draft_slot != kNone && !sessions_[id].is_restoring; };
  const auto found = std::ranges::find_if(active_, has_draft);
  if (found == active_.end()) return false;
  const Slot slot = sessions_[*found].draft_slot;
  const auto known = requests_.known_tokens(slot);
  const std::string& salt = requests_.cache_salt[slot];
  const int32_t num_cached = memory_.num_cached_blocks(salt, known.first(known.size() - 1)) * config_.block_size;
  const int32_t chunk = draft_chunk(slot, num_cached);
  const int32_t num_blocks = chunk / config_.block_size;
  const auto num_running = state_.num_running();
  if (chunk <= 0 || !memory_.has_room_for(num_blocks, num_running)) return false;
  memory_.open(salt, known.first(static_cast<size_t>(num_cached + chunk)), {}, /*is_online=*/false);
  if (!memory_.fits(num_running)) {
    memory_.close();
    return false;
  }
  state_.running.push_back(slot);
  requests_.state[slot] = RequestState::kRunning;
  requests_.row[slot] = memory_.seat();
  requests_.num_computed_tokens[slot] = num_cached;
  HOCKET_CHECK(memory_.grow(requests_.row[slot], num_cached + chunk), "a draft has less memory than it was promised");
  requests_.num_scheduled_tokens[slot] = chunk;
  state_.budget -= chunk;
  return true;
}

// Complete blocks, so that nothing is computed twice, and no more than the step has time for.
int32_t Announcements::draft_chunk(Slot slot, int32_t num_cached) const {
  const int32_t num_left = requests_.num_tokens[slot] - 1 - num_cached;
  int32_t num_blocks = std::min(num_left, state_.budget) / config_.block_size;
  const bool is_alone = state_.plan.empty();
  const bool is_blind = !is_alone && !estimates_.knows_latency();
  if (is_blind) num_blocks = std::min(num_blocks, std::max(1, kBlindChunk / config_.block_size));
  const BatchFeatures features = is_alone ? BatchFeatures{} : plan_features(state_.plan);
  const IdleRoom room = is_alone ? IdleRoom{} : draft_room(estimates_.latency.predict(features));
  const double limit = std::min(offline_step_seconds(config_, estimates_, true), room.seconds);
  if (!is_blind) num_blocks = std::min(num_blocks, room.tokens / config_.block_size);
  const auto seconds_with = [&](int32_t num_tokens) {
    BatchFeatures with = features;
    with.add_chunk(num_cached, num_tokens);
    return estimates_.latency.predict(with);
  };
  const int32_t num_least = is_alone ? 1 : 0;  // a draft that nobody is in the way of goes on
  while (num_blocks > num_least && seconds_with(num_blocks * config_.block_size) > limit) num_blocks /= 2;
  return num_blocks * config_.block_size;
}

// Of a step that takes `seconds` without the draft. Where ITL targets say what people shall feel, what they leave;
// otherwise nobody feels it.
IdleRoom Announcements::draft_room(double seconds) const {
  const double slack = seconds_before_deadline(state_.snapshot(), state_.running);
  if (slack < kNever) return {slack};
  return IdleShare::room_beside(seconds, state_.plan.num_tokens(), draft_share_.saved_seconds(state_.now));
}

// Its chunk is in the prefix cache; the row is free again.
void Announcements::end_draft_step(Slot slot) {
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
  state_.tenants.on_ended(slot);
  requests_.forget_id(slot);
  requests_.free(slot);
}

void Announcements::check_invariants() const {
  sessions_.check_invariants();
  int32_t num_leases = 0, num_drafts = 0;
  size_t num_active = 0;
  for (SessionId id = 0; id < sessions_.end(); ++id) {
    const Session& session = sessions_[id];
    if (!session.is_live) continue;
    num_leases += session.is_leased;
    num_active += session.is_active;
    HOCKET_CHECK(session.is_leased || (!session.is_active && session.leased.empty() && session.draft_slot == kNone),
                 "a session without a lease keeps something");
    HOCKET_CHECK(!session.is_leased || next_lease_end_ <= session.lease_end, "the end of a lease is not known");
    if (session.draft_slot == kNone) continue;
    ++num_drafts;
    HOCKET_CHECK(of_[session.draft_slot].is_draft && of_[session.draft_slot].session == id &&
                     of_[session.draft_slot].serial == session.serial,
                 "a draft is another session's");
  }
  HOCKET_CHECK(num_leases == num_leases_ && num_active == active_.size(), "sessions are miscounted");
  HOCKET_CHECK(std::ranges::all_of(active_, [&](SessionId id) { return sessions_[id].is_active; }),
               "a session is active and not known so");
  int32_t num_live_drafts = 0;
  for (Slot slot = 0; slot < requests_.num_slots(); ++slot) {
    const bool is_live = requests_.state[slot] != RequestState::kFree;
    num_live_drafts += is_live && of_[slot].is_draft && !requests_.is_aborted[slot];
  }
  HOCKET_CHECK(num_drafts == num_live_drafts, "a draft is lost");
}

}  // namespace hocket
