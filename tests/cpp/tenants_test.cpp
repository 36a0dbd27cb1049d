// Virtual token counters: who has been served less is worth more, and time away is no credit.

#include "requests/tenants.h"

#include <cmath>

#include "testing.h"

namespace hocket {
namespace {

class World {
 public:
  Slot add(std::string_view tenant, bool is_idle = false) {
    const std::vector<int32_t> prompt = {1, 2, 3};
    RequestSpec spec;
    spec.id = next_id_++;
    spec.prompt = prompt;
    const Slot slot = requests.add(spec, 64);
    tenants.on_added(slot, tenant, is_idle);
    return slot;
  }
  void end(Slot slot) {
    tenants.on_ended(slot);
    requests.forget_id(slot);
    requests.free(slot);
  }
  float weight(Slot slot) {
    tenants.begin_step();
    return tenants.weight(slot);
  }

  RequestTable requests;
  Tenants tenants{&requests};

 private:
  uint64_t next_id_ = 1;
};

constexpr auto kHalving = static_cast<int32_t>(Tenants::kHalvingTokens);

TEST(tenants, one_tenant_is_worth_the_same_whatever_it_was_served) {
  World world;
  const Slot a = world.add("a");
  world.tenants.on_served(a, 100 * kHalving, 0);
  CHECK_EQ(world.weight(a), 1.0F);
  CHECK_EQ(world.tenants.lead(a), 0);
}

TEST(tenants, who_was_served_more_is_worth_less) {
  World world;
  const Slot a = world.add("a"), b = world.add("b");
  CHECK_EQ(world.weight(a), world.weight(b));
  world.tenants.on_served(a, 2 * kHalving, 0);
  CHECK_EQ(world.weight(a), 0.5F);
  CHECK_EQ(world.weight(b), 2.0F);
  CHECK(world.tenants.lead(a) > world.tenants.lead(b));
  world.tenants.on_served(a, 100 * kHalving, 0);
  CHECK_EQ(world.weight(a), 0.125F);
  CHECK_EQ(world.weight(b), 8.0F);
}

TEST(tenants, sampled_tokens_cost_twice_as_much) {
  World world;
  const Slot a = world.add("a"), b = world.add("b");
  world.tenants.on_served(a, kHalving, 0);
  world.tenants.on_served(b, kHalving / 2, kHalving / 2);  // a decode computes one token and samples one
  CHECK_EQ(world.weight(a), world.weight(b));
}

TEST(tenants, time_away_is_no_credit) {
  World world;
  const Slot a = world.add("a");
  world.end(world.add("b"));
  world.tenants.on_served(a, 50 * kHalving, 0);
  const Slot b = world.add("b");
  CHECK_EQ(world.weight(a), world.weight(b));
}

// Whoever has few requests at a time has none for moments, and would wait for a halving after each of them.
TEST(tenants, time_away_takes_no_credit) {
  World world;
  const Slot a = world.add("a"), first = world.add("b");
  world.tenants.on_served(a, kHalving / 2, 0);
  world.end(first);
  world.tenants.on_served(a, 50 * kHalving, 0);
  const Slot second = world.add("b");
  CHECK_EQ(world.weight(second), std::exp2(0.25F));
  CHECK_EQ(world.weight(a), std::exp2(-0.25F));
}

TEST(tenants, what_is_kept_for_who_is_away_is_bounded) {
  World world;
  const Slot a = world.add("a"), first = world.add("b");
  world.tenants.on_served(a, 50 * kHalving, 0);
  world.end(first);
  const Slot second = world.add("b");
  CHECK_EQ(world.weight(second), std::exp2(Tenants::kMostCredit / (2.0F * kHalving)));
}

// Alice always has requests, Bob sixteen and then a moment none; each step serves the one that goes first.
TEST(tenants, who_is_away_for_moments_is_served_as_much) {
  World world;
  const Slot alice = world.add("a");
  int64_t num_alice = 0, num_bob = 0;
  for (int i = 0; i < 100; ++i) {
    const Slot bob = world.add("b");
    for (int j = 0; j < 16;) {
      world.tenants.begin_step();
      const bool is_bobs = world.tenants.lead(bob) < world.tenants.lead(alice);
      world.tenants.on_served(is_bobs ? bob : alice, 800, 0);
      (is_bobs ? num_bob : num_alice) += 800;
      j += is_bobs;
    }
    world.end(bob);
    world.tenants.on_served(alice, 800, 0);
    num_alice += 800;
  }
  CHECK(num_alice < 1.1 * num_bob);
}

TEST(tenants, who_comes_back_at_once_owes_what_it_was_served) {
  World world;
  const Slot first = world.add("a"), b = world.add("b");
  world.tenants.on_served(first, 2 * kHalving, 0);
  world.end(first);
  const Slot second = world.add("a");
  CHECK(world.weight(second) < world.weight(b));
}

TEST(tenants, drafts_are_paid_for_and_make_nobody_active) {
  World world;
  const Slot a = world.add("a"), draft = world.add("b", true);
  world.tenants.on_served(draft, 2 * kHalving, 0);
  CHECK_EQ(world.weight(a), 1.0F);  // alone
  const Slot b = world.add("b");
  CHECK(world.weight(b) < world.weight(a));
  world.end(draft);
}

TEST(tenants, the_table_of_tenants_is_bounded) {
  World world;
  const Slot a = world.add("a");
  world.tenants.on_served(a, 7, 0);
  for (size_t i = 0; i < 3 * Tenants::kMostRemembered; ++i) world.end(world.add("tenant " + std::to_string(i)));
  CHECK(world.tenants.find("tenant 0") == kNone);
  CHECK(world.tenants.find("a") == world.tenants.index(a));
}

}  // namespace
}  // namespace hocket
