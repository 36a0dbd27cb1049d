// What is remembered of sessions: the tokens of a session's last request, and what has been announced of its next one.
//
// A session is known by its tenant, salt and id together, so that nobody can ask about another's. It becomes known by a
// request. The table holds a bounded number of them; a new one takes the place of the one used least recently.
//
// Thread safety: none. Allocation: when a session becomes known, its request ends, or a draft comes; not per step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "block_key.h"
#include "ids.h"

namespace hocket {

using SessionId = int32_t;  // one entry of a SessionTable

struct SessionName {
  std::string_view tenant;
  std::string_view salt;
  std::string_view id;
};

struct Session {
  std::string key;  // in the table's index
  std::string salt;
  uint64_t serial = 0;          // unique over all sessions ever
  std::vector<int32_t> tokens;  // of its last request, as far as they were computed

  // The announcement
  std::vector<int32_t> draft;       // its prompt as far as it is known: complete blocks, and one token more
  double lease_end = 0.0;           // seconds
  bool is_leased = false;           // an announced request is expected until lease_end
  bool is_answered = false;         // it has come
  double announced_at = 0.0;        // seconds; the first announcement of this lease
  std::vector<BlockKey> keys;       // of the target's blocks; empty without tiers
  std::vector<int32_t> leased;      // tokens whose cached blocks count the lease
  int32_t lease_weight = 0;         // with which they count it
  bool is_active = false;           // there may be something to do for it in the next steps
  bool is_restoring = false;        // moves are under way for it
  int32_t num_restores = 0;         // of this announcement
  Slot draft_slot = kNone;          // that computes the draft
  int64_t num_prepared_tokens = 0;  // restored or computed for it, and not used yet

  // In the order of use
  SessionId older = kNone;
  SessionId newer = kNone;
  bool is_live = false;

  // The tokens to have in device memory: complete blocks of the draft, or of the last request.
  std::span<const int32_t> target(int32_t block_size) const {
    const auto& source = draft.empty() ? tokens : draft;
    return {source.data(), source.size() / static_cast<size_t>(block_size) * static_cast<size_t>(block_size)};
  }
};

class SessionTable {
 public:
  // REQUIRES: max_num_sessions >= 1.
  explicit SessionTable(int32_t max_num_sessions) : max_num_sessions_(max_num_sessions) {}

  // The session of that name, or kNone. It counts as just used.
  SessionId find(const SessionName& name);

  // Makes room for one more: the session that has to go, or kNone if there is room. The caller ends what it does for
  // that session and calls remove().
  SessionId least_recent_if_full() const { return size() < max_num_sessions_ ? kNone : oldest_; }

  // REQUIRES: there is none of that name, and room.
  SessionId add(const SessionName& name);
  void remove(SessionId id);

  Session& operator[](SessionId id) { return sessions_[id]; }
  const Session& operator[](SessionId id) const { return sessions_[id]; }
  bool is_live(SessionId id, uint64_t serial) const {
    return id != kNone && sessions_[id].is_live && sessions_[id].serial == serial;
  }
  int32_t size() const { return static_cast<int32_t>(index_.size()); }
  SessionId end() const { return static_cast<SessionId>(sessions_.size()); }  // ids are below it

  // Throws CoreError on the first broken invariant. O(sessions).
  void check_invariants() const;

 private:
  static std::string key_of(const SessionName& name);
  void append(SessionId id);
  void unlink(SessionId id);

  const int32_t max_num_sessions_;
  std::vector<Session> sessions_;
  std::vector<SessionId> free_;
  std::unordered_map<std::string, SessionId> index_;
  SessionId oldest_ = kNone;
  SessionId newest_ = kNone;
  uint64_t next_serial_ = 1;
};

}  // namespace hocket
