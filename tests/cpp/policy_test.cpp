#include "policy.h"

#include <algorithm>
#include <stdexcept>

#include "testing.h"

namespace hocket {
namespace {

using Slots = std::vector<Slot>;
using Names = std::vector<std::string>;

// Requests by name; what the policy answers, by name.
struct World {
  SchedulerConfig config;
  std::unique_ptr<Policy> policy;
  DeviceMemory memory;
  Estimates estimates;
  OutputForecast outputs;
  RequestTable table;
  Names names;  // by slot
  Slots running;
  Slots waiting;

  explicit World(const char* name, int32_t num_rows = 8)
      : config(make_config(name, num_rows)), policy(make_policy(config)), memory(config) {}

  static SchedulerConfig make_config(const char* name, int32_t num_rows) {
    SchedulerConfig config;
    config.num_units = 1000;
    config.num_layers = 4;
    config.policy = name;
    config.max_num_seqs = num_rows;
    return config;
  }

  Slot add(const std::string& name, double arrival, int64_t priority, int32_t num_prompt) {
    RequestSpec spec;
    spec.id = names.size();
    const std::vector<int32_t> prompt(num_prompt, 1);
    spec.prompt = prompt;
    spec.arrival_time = arrival;
    spec.priority = priority;
    names.push_back(name);
    return table.add(spec, 1000);
  }

  void decoding(const std::string& name, double arrival, int64_t priority = 0) { run(name, arrival, priority, 9); }
  void prefilling(const std::string& name, double arrival, int64_t priority = 0) { run(name, arrival, priority, 5); }

  void waits(const std::string& name, double arrival, int64_t priority = 0) {
    waiting.push_back(add(name, arrival, priority, 10));
    std::ranges::sort(waiting, [&](Slot a, Slot b) { return policy->precedes(table, a, b); });
  }

  Names grants() {
    Composition composition;
    policy->compose(snapshot(), &composition);
    Names result;
    for (const Grant& grant : composition.grants) {
      result.push_back(names[grant.slot] + (grant.is_admission ? "+" : ":") + std::to_string(grant.max_tokens));
    }
    return result;
  }

  Names victims(const std::string& needy) {
    Slots slots;
    policy->victims(snapshot(), static_cast<Slot>(std::ranges::find(names, needy) - names.begin()), &slots);
    std::ranges::sort(slots, [&](Slot a, Slot b) { return policy->yields_before(table, a, b); });
    Names result;
    for (const Slot slot : slots) result.push_back(names[slot]);
    return result;
  }

 private:
  void run(const std::string& name, double arrival, int64_t priority, int32_t num_computed) {
    const Slot slot = add(name, arrival, priority, 10);
    table.state[slot] = RequestState::kRunning;
    table.num_computed_tokens[slot] = num_computed;
    running.push_back(slot);
  }

  Snapshot snapshot() const { return {0.0, table, running, waiting, memory, estimates, outputs, nullptr, 0, 64}; }
};

TEST(policy, fcfs_serves_decodes_then_chunks_then_arrivals) {
  World w("fcfs");
  w.prefilling("chunk", 0);
  w.decoding("a", 2);
  w.decoding("b", 1);
  w.waits("late", 9);
  w.waits("early", 8);
  CHECK_EQ(w.grants(), (Names{"a:1", "b:1", "chunk:5", "early+10", "late+10"}));
}

TEST(policy, fcfs_offers_no_more_than_there_are_rows) {
  World w("fcfs", /*num_rows=*/1);
  w.waits("a", 0);
  w.waits("b", 1);
  CHECK_EQ(w.grants(), (Names{"a+10"}));
}

TEST(policy, fcfs_takes_from_the_last_arrival_and_never_for_a_waiting_one) {
  World w("fcfs");
  w.decoding("second", 2, /*priority=*/0);
  w.decoding("first", 1, /*priority=*/9);
  w.waits("early", 0);
  CHECK_EQ(w.victims("first"), (Names{"second", "first"}));
  CHECK_EQ(w.victims("early"), Names{});
}

TEST(policy, fcfs_breaks_ties_by_order_of_submission) {
  World w("fcfs");
  w.waits("one", 3);
  w.waits("two", 3);
  CHECK_EQ(w.grants(), (Names{"one+10", "two+10"}));
}

TEST(policy, priority_serves_decodes_then_chunks_and_arrivals_by_importance) {
  World w("priority");
  w.prefilling("bulk", 0, 5);
  w.decoding("chat", 1, 7);
  w.waits("urgent", 2, 0);
  w.waits("later bulk", 3, 5);
  w.waits("idle", 0, 9);
  CHECK_EQ(w.grants(), (Names{"chat:1", "urgent+10", "bulk:5", "later bulk+10", "idle+10"}));
}

TEST(policy, priority_displaces_only_the_strictly_less_important) {
  World w("priority");
  w.decoding("low", 0, 5);
  w.decoding("lower", 1, 6);
  w.decoding("same", 2, 3);
  w.decoding("high", 3, 1);
  w.waits("new", 4, 3);
  CHECK_EQ(w.victims("new"), (Names{"lower", "low"}));
  CHECK_EQ(w.victims("high"), (Names{"lower", "low", "same", "high"}));
}

TEST(policy, unknown_names_are_refused) {
  CHECK(!is_policy("best"));
  CHECK_THROWS(make_policy(World::make_config("best", 1)), std::invalid_argument);
}

}  // namespace
}  // namespace hocket
