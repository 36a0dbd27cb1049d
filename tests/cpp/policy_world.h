// A small world for one call of a policy or of one of its stages: requests by name, some running, some waiting, in real
// device memory. Nothing is scheduled or computed here; tests say who has how many tokens.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "policies/policy.h"
#include "testing.h"

namespace hocket::testing {

using Slots = std::vector<Slot>;
using Names = std::vector<std::string>;

constexpr double kNoTarget = std::numeric_limits<double>::infinity();

struct RequestOf {
  double arrival = 0.0;
  int64_t priority = 0;
  int32_t num_prompt = 10;
  int32_t request_class = kOnlineClass;
  double ttft_target = kNoTarget;
  double itl_target = kNoTarget;
  double tpot_target = kNoTarget;
  int32_t first_token = 1;  // the prompt counts up from it
  int64_t max_tokens = 100;
  const char* tenant = "";

  Targets targets() const { return {ttft_target, itl_target, tpot_target}; }
};

inline SchedulerConfig world_config(const char* policy = "fcfs", int32_t num_rows = 8) {
  SchedulerConfig config;
  config.num_units = 1000;
  config.num_layers = 4;
  config.policy = policy;
  config.max_num_seqs = num_rows;
  config.max_model_len = 1000;
  return config;
}

// base + per_token x tokens, whoever they belong to.
inline Estimates linear_seconds(double base, double per_token) {
  LatencyCoefficients k;
  k.step_base = base;
  k.prefill_token = per_token;
  k.decode_seq = per_token;
  k.overlap = 0.0;
  Estimates estimates;
  estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  return estimates;
}

struct PolicyWorld {
  SchedulerConfig config;
  std::unique_ptr<Policy> policy;
  DeviceMemory memory;
  Estimates estimates;
  OutputForecast outputs;
  RequestTable table;
  Tenants tenants{&table};
  std::unique_ptr<OfflineQueue> offline;
  Names names;  // by slot
  Slots running;
  Slots waiting;
  double now = 0.0;
  int64_t reserve_units = 0;
  int32_t max_num_tokens = 64;

  explicit PolicyWorld(const SchedulerConfig& of = world_config()) : config(of), policy(make_policy(of)), memory(of) {
    if (policy->needs_offline_queue()) offline = std::make_unique<OfflineQueue>(config, &table, &memory);
  }

  Slot add(const std::string& name, const RequestOf& request) {
    std::vector<int32_t> prompt(request.num_prompt);
    for (int32_t i = 0; i < request.num_prompt; ++i) prompt[i] = request.first_token + i;
    RequestSpec spec;
    spec.id = names.size();
    spec.prompt = prompt;
    spec.max_tokens = request.max_tokens;
    spec.arrival_time = request.arrival;
    spec.priority = request.priority;
    spec.request_class = request.request_class;
    spec.targets = request.targets();
    names.push_back(name);
    const Slot slot = table.add(spec, config.max_model_len);
    tenants.on_added(slot, request.tenant);
    if (offline) offline->add(slot);
    return slot;
  }

  Slot waits(const std::string& name, const RequestOf& request = {}) {
    const Slot slot = add(name, request);
    waiting.push_back(slot);
    std::ranges::sort(waiting, [&](Slot a, Slot b) { return policy->precedes(table, a, b); });
    table.num_cached_hint[slot] = num_cached(slot);
    if (offline && request.request_class == kOfflineClass) offline->insert(slot);
    return slot;
  }

  // Computed but for `num_left` tokens.
  Slot runs(const std::string& name, int32_t num_left = 1, const RequestOf& request = {}, CacheForm form = {}) {
    const Slot slot = add(name, request);
    const auto known = table.known_tokens(slot);
    const int32_t num_shared = memory.open("", known, form);
    CHECK(memory.fits(static_cast<int32_t>(running.size())));
    FormPlan forms;
    const Row row = memory.seat(&forms);
    table.row[slot] = row;
    table.state[slot] = RequestState::kRunning;
    table.num_computed_tokens[slot] = std::max(num_shared, table.num_tokens[slot] - num_left);
    CHECK(memory.grow(row, table.num_computed_tokens[slot]));
    memory.index(row, table.computed_tokens(slot));
    running.push_back(slot);
    return slot;
  }

  // A prompt of which all complete blocks but that of the last token are cached.
  void is_cached(const RequestOf& request) {
    const Slot slot = runs("gone", 0, request);
    memory.release(table.row[slot]);
    running.pop_back();
    tenants.on_ended(slot);
    table.free(slot);
    table.forget_id(slot);
    names.pop_back();
  }

  int32_t num_cached(Slot slot) const {
    const auto known = table.known_tokens(slot);
    return memory.num_cached_blocks("", known.first(known.size() - 1)) * config.block_size;
  }

  Snapshot snapshot() const {
    return {now,       table,   tenants,       running,       waiting,       memory,
            estimates, outputs, offline.get(), reserve_units, max_num_tokens};
  }

  Composition compose() {
    Composition composition;
    policy->compose(snapshot(), &composition);
    return composition;
  }

  // "a:3" three tokens of a running request, "b+10" an admission, "(h)" as hidden states, "(i8)" in int8, "(2)"
  // without two blocks.
  Names grants() { return grants(compose()); }
  Names grants(const Composition& composition) const {
    Names result;
    for (const Grant& grant : composition.grants) {
      result.push_back(names[grant.slot] + (grant.is_admission ? "+" : ":") + std::to_string(grant.max_tokens) +
                       show(grant.form));
    }
    return result;
  }
  Names preemptions() { return names_of(compose().preemptions); }
  Names reshapes() {
    Names result;
    for (const Reshape& change : compose().reshapes) result.push_back(names[change.slot] + ">" + show(change.form));
    return result;
  }

  Names victims(const std::string& needy) const {
    Slots slots;
    policy->victims(snapshot(), slot_of(needy), &slots);
    std::ranges::sort(slots, [&](Slot a, Slot b) { return policy->yields_before(table, a, b); });
    return names_of(slots);
  }

  Slot slot_of(const std::string& name) const {
    return static_cast<Slot>(std::ranges::find(names, name) - names.begin());
  }
  Names names_of(const Slots& slots) const {
    Names result;
    for (const Slot slot : slots) result.push_back(names[slot]);
    return result;
  }

 private:
  static std::string show(CacheForm form) {
    if (form == CacheForm{}) return "";
    if (form.kind == CacheKind::kInt8) return "(i8)";
    return form.kind == CacheKind::kHidden ? "(h)" : "(" + std::to_string(form.num_uncached_blocks) + ")";
  }
};

}  // namespace hocket::testing
