#include "policy.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace hocket {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"fcfs",  "priority", "apt",  "bs",    "bs_e",
                                                    "bs_es", "echo",     "ellm", "hocket"};

}  // namespace

std::string policy_names() {
  std::string names;
  for (const std::string_view name : kNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

bool is_policy(std::string_view name) { return std::ranges::find(kNames, name) != kNames.end(); }

std::unique_ptr<Policy> make_policy(const SchedulerConfig& config) {
  const std::string_view name = config.policy;
  if (name == "fcfs") return make_fcfs_policy(config);
  if (name == "priority") return make_priority_policy();
  if (name == "apt") return make_apt_policy(config);
  if (name == "ellm") return make_ellm_policy(config);
  if (name == "hocket") return make_hocket_policy(config);
  if (is_policy(name)) return make_echo_policy(config, name);
  throw std::invalid_argument("policy must be one of " + policy_names() + ", not '" + std::string(name) + "'");
}

}  // namespace hocket
