// What is remembered of sessions: the tokens of a session's last request, and what has been announced of its next one.
//
// A session is known by its tenant, salt and id together, so that nobody can ask about another's. It becomes known by a
// request, or from an earlier life of the engine. The table holds a bounded number of them, and a tenant alone may have
// them all. When it is full, a new one takes the place of the least recently used one of the tenant with the most, or
// of its own tenant if none has more: so a tenant over its fair share gives way first, and nobody loses a session below
// it.
//
// find(), add() and remove() take O(log tenants) and a look-up, peek() the look-up.
//
// Thread safety: none. Allocation: when a session becomes known, its request ends, or a draft comes; not per step.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/block_key.h"
#include "base/ids.h"

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
  size_t id_size = 0;           // of the session's id, with which the key ends
  uint64_t serial = 0;          // unique over all sessions ever
  std::vector<int32_t> tokens;  // of its last request, as far as they were computed

  // The announcement
  std::vector<int32_t> draft;       // its prompt as far as it is known: complete blocks, and one token more
  double lease_end = 0.0;           // seconds
  bool is_leased = false;           // an announced request is expected until lease_end
  bool is_answered = false;         // it has come
  std::vector<BlockKey> keys;       // of the target's blocks; empty without tiers
  std::vector<int32_t> leased;      // tokens whose cached blocks count the lease
  int32_t lease_weight = 0;         // with which they count it
  bool is_active = false;           // there may be something to do for it in the next steps
  bool is_restoring = false;        // moves are under way for it
  bool is_pulling = false;          // and some of them are from a peer
  int32_t num_restores = 0;         // of this announcement
  Slot draft_slot = kNone;          // that computes the draft
  int64_t num_prepared_tokens = 0;  // restored or computed for it, and not used yet

  // In the order of use, among its tenant's
  SessionId older = kNone;
  SessionId newer = kNone;
  int32_t tenant = kNone;  // its place in the table
  uint64_t used = 0;       // grows from use to use, over all sessions
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

  // The same, and its place in the order of use stays.
  SessionId peek(const SessionName& name) const;

  // Makes room for one more of that name: the session that has to go, or kNone if there is room. The caller ends what
  // it does for that session and calls remove().
  SessionId least_recent_if_full(const SessionName& name) const;

  // REQUIRES: there is none of that name, and room.
  SessionId add(const SessionName& name);
  void remove(SessionId id);

  // REQUIRES: the session is live. Valid until the next call that changes the table.
  std::string_view tenant(SessionId id) const { return tenants_[sessions_[id].tenant].name; }

  Session& operator[](SessionId id) { return sessions_[id]; }
  const Session& operator[](SessionId id) const { return sessions_[id]; }
  bool is_live(SessionId id, uint64_t serial) const {
    return id != kNone && sessions_[id].is_live && sessions_[id].serial == serial;
  }
  int32_t size() const { return static_cast<int32_t>(index_.size()); }
  SessionId end() const { return static_cast<SessionId>(sessions_.size()); }  // ids are below it

  // Calls visit(name) for `max` sessions at most, tenant by tenant, the most recently used first.
  template <typename Visit>
  void visit_recent(int32_t max, Visit visit) const {
    for (const Standing& standing : standings_) {
      const Tenant& tenant = tenants_[standing.tenant];
      for (SessionId id = tenant.newest; id != kNone && max > 0; id = sessions_[id].older, --max) {
        const Session& session = sessions_[id];
        const std::string_view key = session.key;
        const size_t num_before = key.size() - session.id_size;
        visit(SessionName{tenant.name, session.salt, key.substr(num_before)});
      }
    }
  }

  // Throws CoreError on the first broken invariant. O(sessions).
  void check_invariants() const;

 private:
  struct Tenant {
    std::string name;
    int32_t num_sessions = 0;  // 0: the place is free
    SessionId oldest = kNone;
    SessionId newest = kNone;
  };
  // Where a tenant stands: who has most comes first, and of equals whose oldest session is the oldest.
  struct Standing {
    bool operator<(const Standing& other) const {
      return num_sessions != other.num_sessions ? num_sessions > other.num_sessions : oldest_use < other.oldest_use;
    }
    int32_t num_sessions;
    uint64_t oldest_use;  // unique
    int32_t tenant;
  };

  static std::string key_of(const SessionName& name);
  int32_t tenant_of(std::string_view name);
  void forget_tenant(int32_t tenant);
  Standing standing_of(int32_t tenant) const;
  void append(SessionId id);
  void unlink(SessionId id);
  int32_t check_tenant(int32_t tenant) const;

  const int32_t max_num_sessions_;
  std::vector<Session> sessions_;
  std::vector<SessionId> free_;
  std::unordered_map<std::string, SessionId> index_;
  std::vector<Tenant> tenants_;
  std::vector<int32_t> free_tenants_;
  std::unordered_map<std::string, int32_t> tenant_index_;
  std::set<Standing> standings_;  // of tenants with sessions
  uint64_t next_serial_ = 1;
  uint64_t next_use_ = 1;
};

}  // namespace hocket
