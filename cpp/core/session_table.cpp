#include "session_table.h"

#include "check.h"

namespace hocket {

// Lengths separate the parts, so that no two names have one key.
std::string SessionTable::key_of(const SessionName& name) {
  std::string key = std::to_string(name.tenant.size()) + ':' + std::to_string(name.salt.size()) + ':';
  key.append(name.tenant).append(name.salt).append(name.id);
  return key;
}

SessionId SessionTable::find(const SessionName& name) {
  const auto found = index_.find(key_of(name));
  if (found == index_.end()) return kNone;
  unlink(found->second);
  append(found->second);
  return found->second;
}

SessionId SessionTable::add(const SessionName& name) {
  if (free_.empty()) {
    free_.push_back(static_cast<SessionId>(sessions_.size()));
    sessions_.emplace_back();
  }
  const SessionId id = free_.back();
  free_.pop_back();
  Session& session = sessions_[id];
  session = Session{};
  session.key = key_of(name);
  session.salt = name.salt;
  session.serial = next_serial_++;
  session.is_live = true;
  const bool is_new = index_.emplace(session.key, id).second;
  HOCKET_CHECK(is_new, "a session is added twice");
  append(id);
  return id;
}

void SessionTable::remove(SessionId id) {
  unlink(id);
  index_.erase(sessions_[id].key);
  sessions_[id] = Session{};
  free_.push_back(id);
}

void SessionTable::append(SessionId id) {
  sessions_[id].older = newest_;
  sessions_[id].newer = kNone;
  (newest_ == kNone ? oldest_ : sessions_[newest_].newer) = id;
  newest_ = id;
}

void SessionTable::unlink(SessionId id) {
  const Session& session = sessions_[id];
  (session.older == kNone ? oldest_ : sessions_[session.older].newer) = session.newer;
  (session.newer == kNone ? newest_ : sessions_[session.newer].older) = session.older;
}

void SessionTable::check_invariants() const {
  int32_t num_listed = 0;
  SessionId last = kNone;
  for (SessionId id = oldest_; id != kNone; last = id, id = sessions_[id].newer, ++num_listed) {
    HOCKET_CHECK(sessions_[id].is_live && sessions_[id].older == last, "the order of sessions is broken");
    const auto found = index_.find(sessions_[id].key);
    HOCKET_CHECK(found != index_.end() && found->second == id, "a session is not found by its name");
  }
  HOCKET_CHECK(last == newest_ && num_listed == size(), "sessions are lost");
  HOCKET_CHECK(index_.size() + free_.size() == sessions_.size(), "sessions are miscounted");
}

}  // namespace hocket
