#include "policy.h"

#include <stdexcept>

#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::Names;
using testing::PolicyWorld;
using testing::world_config;

// Prompts of 10 tokens; decoding: but for one computed, prefilling: half of it.
struct World : PolicyWorld {
  explicit World(const char* name, int32_t num_rows = 8) : PolicyWorld(world_config(name, num_rows)) {}

  void decoding(const std::string& name, double arrival, int64_t priority = 0) {
    runs(name, 1, {.arrival = arrival, .priority = priority});
  }
  void prefilling(const std::string& name, double arrival, int64_t priority = 0) {
    runs(name, 5, {.arrival = arrival, .priority = priority});
  }
  void waits(const std::string& name, double arrival, int64_t priority = 0) {
    PolicyWorld::waits(name, {.arrival = arrival, .priority = priority});
  }
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
  CHECK_THROWS(make_policy(world_config("best")), std::invalid_argument);
}

}  // namespace
}  // namespace hocket
