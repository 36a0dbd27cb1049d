// The step path allocates nothing in steady state: counted by replacing the global operator new.

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "memory/block_pool.h"
#include "memory/prefix_cache.h"
#include "scheduler/scheduler.h"
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

constexpr const char* kPolicies[] = {"fcfs", "priority", "apt", "bs", "bs_e", "bs_es", "echo", "ellm", "hocket"};

SchedulerConfig small_config(const char* policy) {
  SchedulerConfig config;
  config.num_units = 8000;
  config.num_layers = 8;
  config.block_size = 4;
  config.max_num_seqs = 32;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 200;
  config.policy = policy;
  return config;
}

// 10 ms and 0.1 ms per token.
Estimates known_seconds() {
  LatencyCoefficients k;
  k.step_base = 0.01;
  k.prefill_token = 1e-4;
  k.decode_seq = 1e-4;
  Estimates estimates;
  estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  return estimates;
}

void expect_no_allocation_when_decoding(const SchedulerConfig& config, const Estimates& estimates) {
  Scheduler scheduler(config, estimates);
  for (int32_t id = 0; id < 32; ++id) {
    const std::vector<int32_t> prompt(8, id);
    RequestSpec spec;
    spec.id = id;
    spec.prompt = prompt;
    spec.max_tokens = 1000;
    spec.request_class = id % 2;
    spec.targets = {.itl = 10.0, .tpot = 10.0};
    scheduler.add_request(spec);
  }
  const std::vector<int32_t> sampled(32, 7);
  double now = 0.0;
  const auto step = [&] {
    const BatchPlan& plan = scheduler.schedule(now);
    now += 0.02;
    scheduler.commit({sampled.data(), plan.sample_seqs.size()}, now);
    return plan.num_seqs();
  };
  for (int32_t i = 0; i < 40; ++i) step();

  const int64_t before = num_allocations;
  for (int32_t i = 0; i < 100; ++i) CHECK_EQ(step(), 32);
  CHECK_EQ(num_allocations - before, 0);
}

TEST(allocation, decoding_allocates_nothing) {
  for (const char* policy : kPolicies) expect_no_allocation_when_decoding(small_config(policy), known_seconds());
}
TEST(allocation, decoding_without_a_latency_model_allocates_nothing) {
  for (const char* policy : kPolicies) expect_no_allocation_when_decoding(small_config(policy), Estimates());
}
TEST(allocation, decoding_without_a_prefix_cache_allocates_nothing) {
  for (const char* policy : kPolicies) {
    SchedulerConfig config = small_config(policy);
    config.enable_prefix_caching = false;
    expect_no_allocation_when_decoding(config, known_seconds());
  }
}

// Online and offline requests come and go, in three families of prompts; add_request() may allocate, steps may not.
int64_t num_allocations_of_steps(const SchedulerConfig& config, int32_t num_live, bool has_offline) {
  Scheduler scheduler(config, known_seconds());
  const std::vector<int32_t> sampled(config.max_num_seqs, 7);
  uint64_t next_id = 0;
  double now = 0.0;
  int64_t num_in_steps = 0;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 6000; ++i) {
    const auto stats = scheduler.stats();
    int64_t live = 0;
    for (const auto* counts : {&stats.num_running, &stats.num_waiting}) {
      for (const int64_t count : *counts) live += count;
    }
    for (; live < num_live; ++live) {
      const auto id = static_cast<int32_t>(next_id);
      prompt.resize(5 + id * 7 % 60);
      for (size_t k = 0; k < prompt.size(); ++k) prompt[k] = 1000 * (id % 3) + static_cast<int32_t>(k) / 20 * (id % 5);
      RequestSpec spec;
      spec.id = next_id++;
      spec.prompt = prompt;
      spec.max_tokens = 1 + id * 11 % 40;
      spec.request_class = has_offline && id % 4 == 0 ? kOfflineClass : kOnlineClass;
      spec.arrival_time = now;
      spec.targets = {.ttft = 2.0, .itl = 0.05};
      scheduler.add_request(spec);
    }
    const int64_t before = num_allocations;
    const BatchPlan& plan = scheduler.schedule(now);
    now += 0.02;
    scheduler.commit({sampled.data(), plan.sample_seqs.size()}, now);
    if (i >= 3000) num_in_steps += num_allocations - before;
  }
  return num_in_steps;
}

void expect_no_allocation_in_steps(const SchedulerConfig& config, int32_t num_live, bool has_offline) {
  const int64_t count = num_allocations_of_steps(config, num_live, has_offline);
  if (count > 0) throw testing::Failure(config.policy + " allocates " + std::to_string(count) + " times");
}

TEST(allocation, requests_that_come_and_go_allocate_nothing_in_the_step) {
  for (const char* policy : kPolicies) expect_no_allocation_in_steps(small_config(policy), 20, true);
}

// Memory for half of them. An offline request that is preempted enters the offline queue again, which allocates: where
// there is one, only online requests come.
TEST(allocation, preemption_allocates_nothing) {
  for (const char* name : kPolicies) {
    const std::string policy = name;
    const bool has_queue = policy == "bs_es" || policy == "echo" || policy == "hocket";
    SchedulerConfig config = small_config(name);
    config.num_units = 4 * 100;
    expect_no_allocation_in_steps(config, 40, !has_queue);
    config.int8_units_per_group = 1;
    expect_no_allocation_in_steps(config, 40, !has_queue);
    config.int8_units_per_group = 0;
    config.hidden_units_per_group = 1;
    config.preemption = "swap";
    config.num_host_units = 100;
    expect_no_allocation_in_steps(config, 40, !has_queue);
  }
}

// Knapsack with both kinds, b/r solver, starving turns and learnt step times at once; memory for half of them. Sessions
// on disk are not among it: each block that is stored there is a new entry of an index.
TEST(allocation, all_decisions_at_once_allocate_nothing) {
  SchedulerConfig config = small_config("hocket");
  config.num_units = 4 * 100;
  config.hidden_units_per_group = 1;
  config.enable_partial_caching = true;
  config.refine_latency = true;
  config.max_wait_ms = 500;
  config.starving_turn_ms = 100;
  config.max_decode_step_ms = 0;
  for (const int32_t num_live : {40, 64, 150}) expect_no_allocation_in_steps(config, num_live, false);
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
