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
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/ids.h"
#include "requests/per_request.h"
#include "sessions/session_table.h"
#include "stages/idle_share.h"
#include "state/scheduler_state.h"

namespace hocket {

// What is known of a session. The first two announce a request.
enum class AdvisoryEvent : int32_t {
  kTyping = 0,
  kAgentStep = 1,
  kCancel = 2,   // the announced request will not come: the lease ends, the session stays known
  kQuery = 3,    // changes nothing
  kRelease = 4,  // the session is over: it is forgotten
};
inline constexpr int32_t kNumAdvisoryEvents = 5;

// What is done about an advisory; the costliest of what is done.
enum class SessionAction : int32_t {
  kNone = 0,          // nothing to do, or the session is unknown
  kPin = 1,           // all of its cache is in device memory and is held there
  kPrefetch = 2,      // cache comes up from the host or the disk
  kDraftPrefill = 3,  // what is missing of the draft is computed
  kRelease = 4,       // its lease ended, or the session is forgotten
  kRefused = 5,       // memory or the draft's length does not permit it
};

struct AdvisorySpec {
  SessionName session;
  AdvisoryEvent event = AdvisoryEvent::kQuery;
  double lease_seconds = 0.0;
  std::span<const int32_t> draft;  // the prompt as far as it is known; may be empty
};

struct SessionState {
  bool is_known = false;
  int32_t num_tokens = 0;                   // of the session's last request
  std::array<int32_t, 3> tier_tokens = {};  // of the announced prompt or the last request: device, host, disk
  SessionAction action = SessionAction::kNone;
  double lease_seconds = -1.0;  // that are left; negative: no lease
};

inline constexpr uint64_t kDraftIds = uint64_t{1} << 63;  // ids of drafts in plans start here

class Announcements {
 public:
  explicit Announcements(SchedulerState* state);

  // Announces a session's next request, takes that back, or only asks.
  SessionState advise(const AdvisorySpec& spec, double now);

  // A session that an earlier life of the engine knew, and the tokens of its last request there. It becomes known as by
  // a request. False, and nothing changes, if it is known already, has no name, or no request here could have computed
  // these tokens: there is none, one is negative, or they exceed max_model_len or the pool.
  bool remember(const SessionName& name, std::span<const int32_t> tokens);

  // A session that a peer knows better, and the tokens of its last request there; otherwise as remember().
  bool adopt(const SessionName& name, std::span<const int32_t> tokens);

  // Brings what other tiers have of a session's last request to the host, without an announcement; returns how many
  // blocks are under way for that.
  int32_t pull(const SessionName& name);

  // Calls visit(name) for each session, `max` at most: those of whom has most first, of each the most recently used.
  template <typename Visit>
  void visit_recent(int32_t max, Visit visit) const {
    sessions_.visit_recent(max, visit);
  }

  // What the session's last request has computed, until the next call that changes sessions; empty if it is unknown, or
  // none has ended. The session does not count as used.
  std::span<const int32_t> tokens(const SessionName& name) const;

  // ---- the requests of sessions ----

  // REQUIRES: the spec names a session.
  void on_added(Slot slot, const RequestSpec& spec);
  void on_seated(Slot slot);
  // The session is told what it has computed.
  void on_ended(Slot slot);
  bool is_of_session(Slot slot) const { return of_[slot].session != kNone; }  // a request, or a draft
  bool is_restoring(Slot slot) const;  // moves are under way for the request's session
  bool is_pulling(Slot slot) const;    // and some of them are from a peer

  // ---- steps ----

  // After everybody else has got what the step gives. True if a draft has got a chunk of it: it runs in this step.
  bool advance();
  // The moves for a session have ended.
  void end_restore(const RestoreOwner& owner);
  bool is_draft(Slot slot) const { return requests_.id[slot] >= kDraftIds && of_[slot].is_draft; }
  // The step that computed a chunk of a draft is over.
  void end_draft_step(Slot slot);
  // A step of that many seconds, with or without drafts beside others, is over.
  void note_step(bool has_others, bool has_drafts, double now) { draft_share_.note_step(has_others, has_drafts, now); }

  int32_t num_sessions() const { return sessions_.size(); }
  int32_t num_leases() const { return num_leases_; }

  // Throws CoreError on the first broken invariant. O(sessions and requests).
  void check_invariants() const;

 private:
  struct OfRequest {
    SessionId session = kNone;
    uint64_t serial = 0;    // the session of that id may be another by now
    bool is_draft = false;  // computes its session's draft, and ends without sampling
  };

  static constexpr double kNever = std::numeric_limits<double>::infinity();

  bool could_compute(const SessionName& name, std::span<const int32_t> tokens) const;
  SessionId add_making_room(const SessionName& name);
  Session* session_of(Slot slot);
  bool set_draft(Session* session, std::span<const int32_t> draft);
  void announce(SessionId id, double lease_seconds, double now);
  void retarget(SessionId id);
  void end(SessionId id);
  void end_leases();
  void renew_lease(Session* session);
  SessionAction plan_for(const Session& session) const;
  void report(const Session& session, double now, SessionState* report) const;
  bool advance(SessionId id);
  bool restore(SessionId id, int32_t num_cached);
  bool begin_draft(SessionId id);
  void drop_draft(Session* session);
  bool grant_draft();
  int32_t draft_chunk(Slot slot, int32_t num_cached) const;
  IdleRoom draft_room(double seconds) const;

  SchedulerState& state_;
  const SchedulerConfig& config_;
  const Estimates& estimates_;
  DeviceMemory& memory_;
  Tiers& tiers_;
  RequestTable& requests_;
  SchedulerCounters& counters_;

  SessionTable sessions_;
  PerRequest<OfRequest> of_;
  std::vector<SessionId> active_;   // sessions that are, by their flag, in the order of their announcements
  double next_lease_end_ = kNever;  // seconds; no lease ends before
  int32_t num_leases_ = 0;
  uint64_t num_drafts_ = 0;  // ever
  IdleShare draft_share_;
};

}  // namespace hocket
