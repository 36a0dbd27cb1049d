#include "policy.h"

#include <stdexcept>
#include <string>

namespace hocket {

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (name == "fcfs") return make_fcfs_policy();
  if (name == "priority") return make_priority_policy();
  throw std::invalid_argument("policy must be one of fcfs, priority, not '" + std::string(name) + "'");
}

}  // namespace hocket
