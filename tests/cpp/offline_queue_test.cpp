#include "offline/offline_queue.h"

#include <random>

#include "policy_world.h"
#include "testing.h"

namespace hocket {
namespace {

using testing::Names;
using testing::PolicyWorld;
using testing::RequestOf;
using testing::Slots;
using testing::world_config;

constexpr int32_t kBlock = 16;

// A prompt of offline work whose tokens count up from `family`.
RequestOf offline_of(int32_t family, int32_t num_prompt) {
  return {.num_prompt = num_prompt, .request_class = kOfflineClass, .first_token = family};
}

Names candidates(const PolicyWorld& world, int32_t num_tokens, int32_t max_slots) {
  Slots slots;
  world.offline->candidates(num_tokens, max_slots, &slots);
  return world.names_of(slots);
}

TEST(offline_queue, offers_what_is_cached_then_prompts_of_the_size_asked_for) {
  PolicyWorld world(world_config("echo"));
  world.is_cached(offline_of(4000, 90));
  world.waits("short", offline_of(1000, 20));
  world.waits("long", offline_of(2000, 200));
  world.waits("middle", offline_of(3000, 50));
  world.waits("cached", offline_of(4000, 90));
  CHECK_EQ(candidates(world, 200, 2), (Names{"cached", "long"}));
  CHECK_EQ(candidates(world, 50, 2), (Names{"cached", "middle"}));
  CHECK_EQ(candidates(world, 50, 10).size(), 4);
}

TEST(offline_queue, what_is_cached_comes_before_the_size_asked_for) {
  PolicyWorld world(world_config("echo"));
  world.is_cached(offline_of(2000, 200));
  world.waits("short", offline_of(1000, 20));
  world.waits("cached", offline_of(2000, 200));
  CHECK_EQ(candidates(world, 20, 1), (Names{"cached"}));
  CHECK_EQ(world.offline->num_cached_tokens(world.slot_of("cached")), 12 * kBlock);
  CHECK_EQ(world.offline->num_cached_tokens(world.slot_of("short")), 0);
}

TEST(offline_queue, hears_of_what_is_computed_while_requests_wait) {
  PolicyWorld world(world_config("echo"));
  world.waits("other", offline_of(1000, 100));
  const Slot twin = world.waits("twin", offline_of(2000, 100));
  const Slot first = world.runs("first", 1, offline_of(2000, 100));
  world.offline->note_cached(first, 0, 6);
  CHECK_EQ(candidates(world, 100, 1), (Names{"twin"}));
  CHECK_EQ(world.offline->num_cached_tokens(twin), 6 * kBlock);
}

TEST(offline_queue, the_last_token_of_a_prompt_is_never_cached) {
  PolicyWorld world(world_config("echo"));
  world.is_cached(offline_of(1000, 100));
  CHECK_EQ(world.offline->num_cached_tokens(world.waits("even", offline_of(1000, 32))), kBlock);
  CHECK_EQ(world.offline->num_cached_tokens(world.waits("odd", offline_of(1000, 33))), 2 * kBlock);
}

TEST(offline_queue, who_was_taken_is_offered_no_more) {
  PolicyWorld world(world_config("echo"));
  const Slot a = world.waits("a", offline_of(1000, 50));
  world.waits("b", offline_of(2000, 50));
  world.offline->take(a);
  CHECK_EQ(candidates(world, 50, 10), (Names{"b"}));
  world.offline->insert(a);
  CHECK_EQ(candidates(world, 50, 10).size(), 2);
  world.offline->check_invariants();
}

// Prompts that pend and begin as the request's does, up to the end of each block.
TEST(offline_queue, counts_pending_prompts_as_a_scan_over_all_of_them_does) {
  std::mt19937 random(4);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  PolicyWorld world(world_config("echo"));
  Slots waiting;
  for (int32_t step = 0; step < 400; ++step) {
    if (waiting.empty() || between(1, 3) > 1) {
      const int32_t family = 1000 * between(1, 4);
      waiting.push_back(world.waits("r" + std::to_string(step), offline_of(family, between(1, 120))));
    } else {
      const size_t i = between(0, static_cast<int32_t>(waiting.size()) - 1);
      world.offline->take(waiting[i]);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    }
    world.offline->check_invariants();
    if (waiting.empty()) continue;
    const Slot asked = waiting[between(0, static_cast<int32_t>(waiting.size()) - 1)];
    const int32_t num_blocks = world.table.num_prompt_tokens[asked] / kBlock + 1;
    const int32_t begin = between(0, num_blocks);
    std::vector<uint32_t> expected;
    for (int32_t block = begin; block < num_blocks; ++block) {
      const auto uses = [&](Slot slot) {
        const int32_t end = (block + 1) * kBlock;  // of tokens, all of which may be cached
        return end < world.table.num_prompt_tokens[slot] && end < world.table.num_prompt_tokens[asked] &&
               world.table.known_tokens(slot)[0] == world.table.known_tokens(asked)[0];
      };
      expected.push_back(static_cast<uint32_t>(std::ranges::count_if(waiting, uses)));
    }
    const auto counts = world.offline->pending_counts(asked, begin, num_blocks);
    if (counts.empty()) {
      CHECK(std::ranges::all_of(expected, [](uint32_t count) { return count == 0; }));
    } else {
      CHECK_EQ(counts, expected);
    }
  }
}

// The blocks that pending prompts will use are those that eviction should spare.
TEST(offline_queue, pending_prompts_make_cached_blocks_valuable) {
  PolicyWorld world(world_config("echo"));
  world.is_cached(offline_of(1000, 100));  // 6 blocks of 2 units
  CHECK_EQ(world.memory.num_valuable_units(), 0);
  const Slot slot = world.waits("a", offline_of(1000, 60));  // will use 3 of them
  CHECK_EQ(world.memory.num_valuable_units(), 3 * 2);
  world.offline->take(slot);
  CHECK_EQ(world.memory.num_valuable_units(), 0);
}

}  // namespace
}  // namespace hocket
