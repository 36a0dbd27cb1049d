// The step path allocates nothing in steady state: counted by replacing the global operator new.

#include <atomic>
#include <cstdlib>
#include <new>

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

TEST(allocation, the_count_is_real) {
  const int64_t before = num_allocations;
  CHECK_EQ(std::vector<int32_t>(10).size(), 10);
  CHECK(num_allocations > before);
}

}  // namespace
}  // namespace hocket
