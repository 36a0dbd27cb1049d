// Scheduler::check_invariants(): lists, counters and memory against each other.

#include <algorithm>

#include "check.h"
#include "scheduler.h"

namespace hocket {

void Scheduler::check_invariants() const {
  check_lists();
  std::vector<Row> rows;
  for (const Slot slot : running_) rows.push_back(requests_.row[slot]);
  std::sort(rows.begin(), rows.end());
  HOCKET_CHECK(std::adjacent_find(rows.begin(), rows.end()) == rows.end(), "two requests share a row");
  HOCKET_CHECK(static_cast<int32_t>(rows.size()) + memory_.num_free_rows() == config_.max_num_seqs, "a row is lost");
  const auto arrivals = tiers_.arrivals();
  memory_.check_invariants(rows, arrivals);
  tiers_.check_invariants();
  check_sessions();
  int64_t num_host_units = 0;
  int32_t num_private_rows = 0;
  for (const Slot slot : waiting_) num_host_units += requests_.num_saved_units[slot];
  for (const Slot slot : running_) num_private_rows += memory_.form(requests_.row[slot]) != CacheForm{};
  HOCKET_CHECK(num_host_units == num_host_units_, "units on the host differ from the saved requests'");
  HOCKET_CHECK(num_private_rows == num_private_rows_, "rows of another form differ from their count");
  if (offline_) {
    const auto num_offline = std::ranges::count_if(waiting_, [&](Slot slot) { return is_queued_offline(slot); });
    HOCKET_CHECK(num_offline == offline_->size(), "the offline queue differs from the waiting list");
    offline_->check_invariants();
  }
  for (const Slot slot : restoring_) check_request(slot);
  for (const Slot slot : running_) check_request(slot);
  for (const Slot slot : waiting_) check_request(slot);
}

void Scheduler::check_lists() const {
  std::vector<uint8_t> seen(requests_.num_slots(), 0);
  size_t num_aborted = 0;
  for (const auto& [list, state] : {std::pair{&running_, RequestState::kRunning},
                                    {&waiting_, RequestState::kWaiting},
                                    {&restoring_, RequestState::kRestoring}}) {
    for (const Slot slot : *list) {
      HOCKET_CHECK(requests_.state[slot] == state && !seen[slot], "a list holds a request twice, or another state's");
      seen[slot] = 1;
      num_aborted += requests_.is_aborted[slot] && !requests_.is_draft[slot];
      HOCKET_CHECK(requests_.is_aborted[slot] || requests_.find(requests_.id[slot]) == slot,
                   "an id names another slot");
    }
  }
  const auto num_drafts = static_cast<size_t>(std::ranges::count(requests_.state, RequestState::kDraft));
  const size_t num_listed = running_.size() + waiting_.size() + restoring_.size() + num_drafts;
  HOCKET_CHECK(num_listed == static_cast<size_t>(requests_.num_live()), "a request is lost");
  HOCKET_CHECK(requests_.slot_of_id.size() + num_aborted == num_listed, "an id is lost");
  const auto before = [&](Slot a, Slot b) { return policy_->precedes(requests_, a, b); };
  HOCKET_CHECK(std::is_sorted(waiting_.begin(), waiting_.end(), before), "the waiting list is out of order");
}

void Scheduler::check_sessions() const {
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
    HOCKET_CHECK(requests_.is_draft[session.draft_slot] && requests_.session[session.draft_slot] == id &&
                     requests_.session_serial[session.draft_slot] == session.serial,
                 "a draft is another session's");
  }
  HOCKET_CHECK(num_leases == num_leases_ && num_active == active_sessions_.size(), "sessions are miscounted");
  HOCKET_CHECK(std::ranges::all_of(active_sessions_, [&](SessionId id) { return sessions_[id].is_active; }),
               "a session is active and not known so");
  int32_t num_live_drafts = 0;
  for (Slot slot = 0; slot < requests_.num_slots(); ++slot) {
    const bool is_live = requests_.state[slot] != RequestState::kFree;
    num_live_drafts += is_live && requests_.is_draft[slot] && !requests_.is_aborted[slot];
  }
  HOCKET_CHECK(num_drafts == num_live_drafts, "a draft is lost");
}

void Scheduler::check_request(Slot slot) const {
  const int32_t num_computed = requests_.num_computed_tokens[slot];
  const int32_t num_scheduled = requests_.num_scheduled_tokens[slot];
  const int32_t num_tokens = requests_.num_tokens[slot];
  HOCKET_CHECK(num_computed >= 0 && num_scheduled >= 0 && num_computed + num_scheduled <= num_tokens,
               "a request has more tokens computed than known");
  HOCKET_CHECK(requests_.known_tokens(slot).back() == requests_.last_token[slot], "a request's last token is another");
  HOCKET_CHECK(num_computed < num_tokens, "a live request has nothing left to compute");
  HOCKET_CHECK(num_tokens < requests_.max_total_tokens[slot], "a live request has reached its length");
  HOCKET_CHECK(requests_.num_unstored_tokens[slot] <= num_computed, "tokens are to be recomputed that never were");
  HOCKET_CHECK(is_open_ || (num_scheduled == 0 && !requests_.is_aborted[slot]), "a closed step left traces");
  if (requests_.state[slot] != RequestState::kRunning) {
    HOCKET_CHECK(requests_.row[slot] == kNone && num_computed == 0 && num_scheduled == 0,
                 "a waiting request holds memory");
    return;
  }
  const auto num_blocks = memory_.tables().num_blocks(requests_.row[slot]);
  HOCKET_CHECK(num_blocks * config_.block_size >= num_computed + num_scheduled, "a token has no block");
}

}  // namespace hocket
