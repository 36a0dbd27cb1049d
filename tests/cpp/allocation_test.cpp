// The step path allocates nothing in steady state: counted by replacing the global operator new.

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "block_pool.h"
#include "prefix_cache.h"
#include "scheduler.h"
#include "testing.h"

namespace {
std::atomic<int64_t> num_allocations = 0;

void* counted(std::size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace hocket {
namespace {

void expect_no_allocation_when_decoding(const char* policy, bool enable_prefix_caching) {
  SchedulerConfig config;
  config.num_units = 8000;
  config.num_layers = 8;
  config.block_size = 4;
  config.max_num_seqs = 32;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 200;
  config.policy = policy;
  config.enable_prefix_caching = enable_prefix_caching;
  Scheduler scheduler(config);
  for (int32_t id = 0; id < 32; ++id) {
    const std::vector<int32_t> prompt(8, id);
    RequestSpec spec;
    spec.id = id;
    spec.prompt = prompt;
    spec.max_tokens = 1000;
    scheduler.add_request(spec);
  }
  const std::vector<int32_t> sampled(32, 7);
  const auto step = [&] {
    const BatchPlan& plan = scheduler.schedule(0.0);
    scheduler.commit({sampled.data(), plan.sample_seqs.size()}, 0.0);
    return plan.num_seqs();
  };
  for (int32_t i = 0; i < 40; ++i) step();

  const int64_t before = num_allocations;
  for (int32_t i = 0; i < 100; ++i) CHECK_EQ(step(), 32);
  CHECK_EQ(num_allocations - before, 0);
}

TEST(allocation, decoding_allocates_nothing) { expect_no_allocation_when_decoding("fcfs", true); }
TEST(allocation, decoding_by_priority_allocates_nothing) { expect_no_allocation_when_decoding("priority", true); }
TEST(allocation, decoding_without_a_prefix_cache_allocates_nothing) {
  expect_no_allocation_when_decoding("fcfs", false);
}

// Prompts that share prefixes come, pend, are computed and leave, in a cache too small for them.
TEST(allocation, the_prefix_cache_allocates_nothing_while_its_salt_lives) {
  constexpr int32_t kBlockSize = 2;
  BlockPool pool(/*num_units=*/64, /*units_per_block=*/1);
  PrefixCache cache(&pool, kBlockSize);
  std::vector<BlockId> found;
  found.reserve(64);
  cache.acquire("salt", {}, &found);  // pinned for good: a salt's root allocates
  const std::array<uint32_t, 4> pending{3, 3, 2, 1};
  const auto use = [&](int32_t i) {
    const std::array<int32_t, 8> tokens{1, 1, i % 3, 1, i % 7, 1, i % 31, 1};
    const bool is_online = i % 2 == 0;
    cache.add_pending("salt", tokens, +1);
    found.clear();
    const NodeId node = cache.acquire("salt", tokens, &found, is_online);
    const size_t num_found = found.size();
    std::array<BlockId, 4> blocks;
    const auto computed = std::span(blocks).subspan(num_found);
    cache.evict(static_cast<int32_t>(computed.size()) - pool.num_free());
    for (BlockId& block : computed) block = pool.allocate();
    const auto rest = std::span(tokens).subspan(num_found * kBlockSize);
    cache.release(cache.extend(node, rest, computed, std::span(pending).subspan(num_found), is_online).node);
    if (i % 3 != 0) cache.add_pending("salt", tokens, -1);
    return cache.num_cached_blocks("salt", tokens);
  };
  for (int32_t i = 0; i < 1000; ++i) use(i);

  const int64_t num_evicted_before = cache.num_evicted_blocks();
  const int64_t before = num_allocations;
  for (int32_t i = 0; i < 1000; ++i) CHECK_EQ(use(i), 4);
  CHECK_EQ(num_allocations - before, 0);
  CHECK(cache.num_evicted_blocks() > num_evicted_before);
}

TEST(allocation, the_count_is_real) {
  const int64_t before = num_allocations;
  CHECK_EQ(std::vector<int32_t>(10).size(), 10);
  CHECK(num_allocations > before);
}

}  // namespace
}  // namespace hocket
