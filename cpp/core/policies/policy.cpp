#include "policies/policy.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace hocket {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"fcfs",  "priority", "apt",  "bs",    "bs_e",
                                                    "bs_es", "echo",     "ellm", "hocket"};

}  // namespace

int64_t reserve_units(const SchedulerConfig& config, const Policy& policy, const MemoryForecast& online_use) {
  if (!config.enable_reserve) return 0;
  const double own = config.reserve_deviations;
  return online_use.reserve(own >= 0 ? own : policy.reserve_deviations());
}

std::span<const std::string_view> policy_names() { return kNames; }

bool is_policy(std::string_view name) { return std::ranges::find(kNames, name) != kNames.end(); }

void require_policy(std::string_view name) {
  if (is_policy(name)) return;
  std::string names;
  for (const std::string_view known : kNames) names += (names.empty() ? "" : ", ") + std::string(known);
  throw std::invalid_argument("policy must be one of " + names + ", not '" + std::string(name) + "'");
}

std::unique_ptr<Policy> make_policy(const SchedulerConfig& config) {
  require_policy(config.policy);
  const std::string_view name = config.policy;
  if (name == "fcfs") return make_fcfs_policy(config);
  if (name == "priority") return make_priority_policy();
  if (name == "apt") return make_apt_policy(config);
  if (name == "ellm") return make_ellm_policy(config);
  if (name == "hocket") return make_hocket_policy(config);
  return make_echo_policy(config, name);
}

}  // namespace hocket
