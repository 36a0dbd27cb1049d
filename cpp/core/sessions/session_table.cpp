#include "sessions/session_table.h"

#include "base/check.h"

namespace hocket {

// Lengths separate the parts, so that no two names have one key.
std::string SessionTable::key_of(const SessionName& name) {
  std::string key = std::to_string(name.tenant.size()) + ':' + std::to_string(name.salt.size()) + ':';
  key.append(name.tenant).append(name.salt).append(name.id);
  return key;
}

SessionId SessionTable::peek(const SessionName& name) const {
  const auto found = index_.find(key_of(name));
  return found == index_.end() ? kNone : found->second;
}

SessionId SessionTable::find(const SessionName& name) {
  const SessionId id = peek(name);
  if (id == kNone) return kNone;
  auto standing = standings_.extract(standing_of(sessions_[id].tenant));
  unlink(id);
  append(id);
  standing.value() = standing_of(sessions_[id].tenant);
  standings_.insert(std::move(standing));
  return id;
}

SessionId SessionTable::least_recent_if_full(const SessionName& name) const {
  if (size() < max_num_sessions_) return kNone;
  const Standing& most = *standings_.begin();
  const auto own = tenant_index_.find(std::string(name.tenant));
  const bool is_own = own != tenant_index_.end() && tenants_[own->second].num_sessions == most.num_sessions;
  return tenants_[is_own ? own->second : most.tenant].oldest;
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
  session.id_size = name.id.size();
  session.serial = next_serial_++;
  session.tenant = tenant_of(name.tenant);
  session.is_live = true;
  const bool is_new = index_.emplace(session.key, id).second;
  HOCKET_CHECK(is_new, "a session is added twice");
  Tenant& tenant = tenants_[session.tenant];
  if (tenant.num_sessions > 0) standings_.erase(standing_of(session.tenant));
  append(id);
  ++tenant.num_sessions;
  standings_.insert(standing_of(session.tenant));
  return id;
}

void SessionTable::remove(SessionId id) {
  const int32_t tenant = sessions_[id].tenant;
  standings_.erase(standing_of(tenant));
  unlink(id);
  index_.erase(sessions_[id].key);
  sessions_[id] = Session{};
  free_.push_back(id);
  if (--tenants_[tenant].num_sessions == 0) return forget_tenant(tenant);
  standings_.insert(standing_of(tenant));
}

int32_t SessionTable::tenant_of(std::string_view name) {
  const auto [place, is_new] = tenant_index_.try_emplace(std::string(name), kNone);
  if (!is_new) return place->second;
  if (free_tenants_.empty()) {
    free_tenants_.push_back(static_cast<int32_t>(tenants_.size()));
    tenants_.emplace_back();
  }
  place->second = free_tenants_.back();
  free_tenants_.pop_back();
  tenants_[place->second].name = name;
  return place->second;
}

void SessionTable::forget_tenant(int32_t tenant) {
  tenant_index_.erase(tenants_[tenant].name);
  tenants_[tenant] = Tenant{};
  free_tenants_.push_back(tenant);
}

// REQUIRES: the tenant has sessions.
SessionTable::Standing SessionTable::standing_of(int32_t tenant) const {
  const Tenant& t = tenants_[tenant];
  return {t.num_sessions, sessions_[t.oldest].used, tenant};
}

void SessionTable::append(SessionId id) {
  Session& session = sessions_[id];
  Tenant& tenant = tenants_[session.tenant];
  session.used = next_use_++;
  session.older = tenant.newest;
  session.newer = kNone;
  (tenant.newest == kNone ? tenant.oldest : sessions_[tenant.newest].newer) = id;
  tenant.newest = id;
}

void SessionTable::unlink(SessionId id) {
  const Session& session = sessions_[id];
  Tenant& tenant = tenants_[session.tenant];
  (session.older == kNone ? tenant.oldest : sessions_[session.older].newer) = session.newer;
  (session.newer == kNone ? tenant.newest : sessions_[session.newer].older) = session.older;
}

void SessionTable::check_invariants() const {
  int32_t num_listed = 0;
  for (const auto& [name, tenant] : tenant_index_) {
    HOCKET_CHECK(tenants_[tenant].name == name, "a tenant is not found by its name");
    num_listed += check_tenant(tenant);
  }
  HOCKET_CHECK(num_listed == size() && num_listed <= max_num_sessions_, "sessions are lost");
  HOCKET_CHECK(index_.size() + free_.size() == sessions_.size(), "sessions are miscounted");
  HOCKET_CHECK(tenant_index_.size() + free_tenants_.size() == tenants_.size(), "tenants are miscounted");
  HOCKET_CHECK(standings_.size() == tenant_index_.size(), "standings are miscounted");
}

// Returns its number of sessions.
int32_t SessionTable::check_tenant(int32_t tenant) const {
  const Tenant& t = tenants_[tenant];
  int32_t num_listed = 0;
  SessionId last = kNone;
  for (SessionId id = t.oldest; id != kNone; last = id, id = sessions_[id].newer, ++num_listed) {
    const Session& session = sessions_[id];
    HOCKET_CHECK(session.is_live && session.older == last, "the order of sessions is broken");
    HOCKET_CHECK(session.tenant == tenant, "a session is another tenant's");
    HOCKET_CHECK(last == kNone || sessions_[last].used < session.used, "sessions are not in the order of use");
    const auto found = index_.find(session.key);
    HOCKET_CHECK(found != index_.end() && found->second == id, "a session is not found by its name");
  }
  HOCKET_CHECK(num_listed > 0 && last == t.newest && num_listed == t.num_sessions, "a tenant's sessions are lost");
  HOCKET_CHECK(standings_.contains(standing_of(tenant)), "a tenant stands elsewhere");
  return num_listed;
}

}  // namespace hocket
