// Host and disk: what was computed once comes back, whatever happened to the device; and never anything else.

#include "tiers/tiers.h"

#include <cmath>
#include <random>

#include "base/block_key.h"
#include "fake_engine.h"
#include "testing.h"
#include "tiers/tier_index.h"

namespace hocket {
namespace {

using testing::FakeEngine;
using testing::Tokens;

// Blocks of 4 tokens and 2 units.
SchedulerConfig tier_config(int32_t num_blocks, int32_t num_host_blocks, bool enable_disk = false) {
  SchedulerConfig config;
  config.num_units = 2 * num_blocks;
  config.num_layers = 4;
  config.block_size = 4;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 4 * num_blocks;
  config.num_host_blocks = num_host_blocks;
  config.enable_disk = enable_disk;
  return config;
}

Tokens prompt(int32_t first, int32_t num) {
  Tokens tokens(num);
  for (int32_t i = 0; i < num; ++i) tokens[i] = first + i;
  return tokens;
}

// Requests that take all of the device's memory one after the other.
void flood(FakeEngine* engine, int32_t num_blocks, uint64_t id) {
  for (uint64_t i = 0; i < 2; ++i) {
    CHECK_EQ(engine->add(id + i, prompt(100000 * static_cast<int32_t>(id + i), 4 * num_blocks - 4), 1), AddStatus::kOk);
    engine->run();
  }
  engine->settle();
}

SchedulerCounters counters(const FakeEngine& engine) { return engine.scheduler.stats().counters; }

// Digests of hashlib.blake2s(message, digest_size=16), as little-endian words.
TEST(tiers, a_key_is_a_blake2s_digest) {
  const auto digest = [](int32_t size) {
    std::vector<uint8_t> message(size);
    for (int32_t i = 0; i < size; ++i) message[i] = static_cast<uint8_t>(i);
    return blake2s_128(message);
  };
  CHECK((digest(0) == BlockKey{0x010a2cfe6f0d5564, 0x0c20e0ad1eba4aa1}));
  CHECK((digest(64) == BlockKey{0x015886038fca66dc, 0x0ea9a1d86ee0ffb0}));
  CHECK((digest(130) == BlockKey{0x53c0b49b9f270268, 0x9379bcae196e46dd}));
  const uint8_t abc[] = {'a', 'b', 'c'};
  CHECK((blake2s_128(abc) == BlockKey{0xb8c71d9b113849aa, 0xaed000d2ffd0ba7c}));
}

TEST(tiers, a_key_depends_on_fingerprint_salt_and_all_tokens_before) {
  const BlockKey root = root_key("model", "salt");
  CHECK(root != root_key("model", "other"));
  CHECK(root != root_key("models", "alt"));
  std::vector<BlockKey> keys;
  append_block_keys(root, prompt(1, 11), 4, &keys);
  CHECK_EQ(keys.size(), 2);
  append_block_keys(root, prompt(1, 12), 4, &keys);
  CHECK_EQ(keys.size(), 3);
  CHECK(keys[1] == next_key(next_key(root, prompt(1, 4)), prompt(5, 4)));
  Tokens changed = prompt(1, 12);
  changed[0] = 9;
  std::vector<BlockKey> others;
  append_block_keys(root, changed, 4, &others);
  for (size_t i = 0; i < 3; ++i) CHECK(keys[i] != others[i]);
}

TEST(tiers, the_index_drops_the_least_recently_used_copy_that_nobody_reads) {
  TierIndex index(2);
  const BlockKey a{1, 0}, b{2, 0}, c{3, 0};
  index.arrive(index.take_slot(a));
  index.arrive(index.take_slot(b));
  index.touch(index.find(a));
  const EntryId arriving = index.take_slot(c);
  CHECK_EQ(index.find(b), kNone);
  index.begin_read(index.find(a));
  CHECK_EQ(index.take_slot(b), kNone);  // one is read, the other arrives
  index.arrive(arriving);
  index.set_on_disk(c);
  CHECK(index.take_slot(b) != kNone);
  CHECK(index.is_on_disk(index.find(c)) && index.host_slot(index.find(c)) == kNone);
  index.clear_on_disk(c);
  CHECK_EQ(index.find(c), kNone);
  index.check_invariants();
}

TEST(tiers, a_restore_goes_from_the_disk_to_the_host_once_and_from_there_to_the_device) {
  const Tiers::Extent on_disk{.num_blocks = 3, .num_on_host = 0}, some{.num_blocks = 3, .num_on_host = 1};
  const Tiers::Extent on_host{.num_blocks = 3, .num_on_host = 3}, nothing{};
  const auto is_way = [](const Tiers::Extent& found, int32_t num_restores, RestoreWay way) {
    return Tiers::next_way(found, num_restores) == way;
  };
  CHECK(is_way(on_disk, 0, RestoreWay::kFetch) && is_way(some, 0, RestoreWay::kFetch));
  CHECK(is_way(on_disk, 1, RestoreWay::kNone) && is_way(some, 1, RestoreWay::kLoad));
  CHECK(is_way(on_host, 0, RestoreWay::kLoad) && is_way(on_host, 1, RestoreWay::kLoad));
  CHECK(is_way(on_host, Tiers::kMaxRestores, RestoreWay::kNone) && is_way(nothing, 0, RestoreWay::kNone));
}

TEST(tiers, what_the_device_evicted_comes_back_from_the_host) {
  FakeEngine engine(tier_config(10, 100));
  engine.add(1, prompt(1, 30), 1);
  engine.run();
  flood(&engine, 10, 10);
  engine.add(2, prompt(1, 30), 1);
  engine.run();
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 28);
  CHECK_EQ(counters(engine).num_hit_tokens[1], 28);
  CHECK_EQ(engine.num_loaded, 7);
}

// What it found in the cache is saved, too: it could not come back without.
TEST(tiers, where_only_sessions_are_saved_others_cost_nothing) {
  SchedulerConfig config = tier_config(10, 100);
  config.save_sessions_only = true;
  FakeEngine engine(config);
  engine.add(1, prompt(1, 14), 1);
  engine.run();
  flood(&engine, 10, 10);
  CHECK_EQ(engine.scheduler.stats().tiers.num_saved_blocks, 0);
  engine.add(2, prompt(1, 14), 1);
  engine.run();
  CHECK_EQ(counters(engine).num_hit_tokens[1], 0);
  engine.add(3, "chat", prompt(1, 30), 1);
  engine.run();
  engine.settle();
  CHECK_EQ(engine.scheduler.stats().tiers.num_saved_blocks, 7);
  flood(&engine, 10, 20);
  engine.add(4, "chat", prompt(1, 30), 1);
  engine.run();
  CHECK_EQ(counters(engine).num_hit_tokens[1], 28);
}

TEST(tiers, others_run_while_a_request_is_restored) {
  SchedulerConfig config = tier_config(20, 100);
  config.overlap_restores = false;
  FakeEngine engine(config);
  engine.add(1, prompt(1, 30), 1);
  engine.run();
  flood(&engine, 20, 10);
  engine.ends_move = [] { return false; };
  engine.add(2, prompt(1, 30), 1);
  engine.add(3, prompt(5000, 8), 4);
  for (int32_t i = 0; i < 6; ++i) engine.step();
  CHECK_EQ(engine.output(3).size(), 4);
  CHECK_EQ(engine.output(2).size(), 0);
  engine.ends_move = [] { return true; };
  engine.run();
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 28);
}

// A unit has 100 bytes, a token takes 10 ms, a decode 1 ms.
Estimates estimates_with(double bytes_per_second) {
  Estimates estimates;
  LatencyCoefficients k;
  k.prefill_token = 0.01;
  k.decode_seq = 0.001;
  estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  estimates.unit_bytes = 100;
  estimates.host_bytes_per_second = bytes_per_second;
  return estimates;
}

TEST(tiers, a_request_on_an_idle_engine_is_computed_while_its_blocks_land) {
  FakeEngine engine(tier_config(10, 100), 5, estimates_with(1e5));  // 14 ms for seven blocks, longer than the step
  engine.add(1, prompt(1, 30), 1);
  engine.run();
  flood(&engine, 10, 10);
  engine.add(2, prompt(1, 30), 1);
  const BatchPlan plan = engine.step();
  CHECK_EQ(plan.moves.num_step_loads, 7);
  CHECK_EQ(plan.num_tokens(), 2);
  CHECK_EQ(engine.output(2).size(), 1);
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 28);
  CHECK_EQ(counters(engine).num_hit_tokens[1], 28);
  CHECK_EQ(counters(engine).num_restores, 1);
  engine.settle();
  engine.add(3, prompt(1, 30), 1);  // what landed is in the prefix cache
  engine.run();
  CHECK_EQ(counters(engine).num_hit_tokens[0], 28);
}

TEST(tiers, others_do_not_wait_for_copies_that_take_longer_than_their_step) {
  for (const double bytes_per_second : {1e4, 1e6}) {  // 140 ms and 1.4 ms; two tokens and a decode take 21 ms
    FakeEngine engine(tier_config(20, 100), 5, estimates_with(bytes_per_second));
    engine.add(1, prompt(1, 30), 1);
    engine.run();
    flood(&engine, 20, 10);
    engine.add(3, prompt(5000, 8), 40);
    engine.step();
    engine.add(2, prompt(1, 30), 1);
    const BatchPlan plan = engine.step();
    CHECK_EQ(plan.num_seqs(), bytes_per_second == 1e6 ? 2 : 1);
    CHECK_EQ(plan.moves.num_step_loads, bytes_per_second == 1e6 ? 7 : 0);
    engine.run();
    CHECK_EQ(engine.requests.at(2).num_cached_tokens, 28);
  }
}

// Copies that come in equal parts, and a step that waits for each.
TEST(tiers, overlapped_seconds_are_those_of_a_pipeline) {
  for (const double compute : {0.0, 1.0, 7.0}) {
    for (const double copies : {0.0, 0.5, 7.0, 20.0}) {
      for (const int32_t num_groups : {1, 3, 8}) {
        double now = 0.0;
        for (int32_t g = 0; g < num_groups; ++g) {
          now = std::max(now, copies * (g + 1) / num_groups) + compute / num_groups;
        }
        CHECK(std::abs(Estimates::overlapped_seconds(compute, copies, num_groups) - now) < 1e-12);
      }
    }
  }
}

TEST(tiers, another_salt_finds_nothing) {
  FakeEngine engine(tier_config(10, 100));
  engine.add(1, prompt(1, 30), 1);
  engine.run();
  flood(&engine, 10, 10);
  RequestSpec spec;
  spec.id = 2;
  engine.add(spec, prompt(1, 30), "other");
  engine.run();
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 0);
}

TEST(tiers, what_is_faster_computed_is_not_restored) {
  for (const double bytes_per_second : {1.0, 1e9}) {
    Estimates estimates;
    LatencyCoefficients k;
    k.prefill_token = 0.01;
    k.decode_seq = 0.01;
    estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
    estimates.unit_bytes = 100;
    estimates.host_bytes_per_second = bytes_per_second;
    FakeEngine engine(tier_config(10, 100), 5, estimates);
    engine.add(1, prompt(1, 30), 1);
    engine.run();
    flood(&engine, 10, 10);
    engine.add(2, prompt(1, 30), 1);
    engine.run();
    CHECK_EQ(engine.num_loaded > 0, bytes_per_second > 1.0);
    CHECK_EQ(counters(engine).restore_seconds_saved > 0, bytes_per_second > 1.0);
  }
}

TEST(tiers, the_disk_serves_what_the_host_dropped_and_survives_a_restart) {
  FakeEngine engine(tier_config(10, 12, true));
  engine.add(1, prompt(1, 30), 1);
  engine.run();
  engine.settle();
  flood(&engine, 10, 10);
  engine.add(2, prompt(1, 30), 1);
  engine.run();
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 28);
  CHECK_EQ(counters(engine).num_hit_tokens[2], 28);

  FakeEngine restarted(tier_config(10, 12, true));
  restarted.take_disk(engine);
  restarted.add(3, prompt(1, 30), 1);
  restarted.run();
  CHECK_EQ(restarted.requests.at(3).num_cached_tokens, 28);
}

TEST(tiers, what_the_disk_lost_is_computed) {
  FakeEngine engine(tier_config(10, 12, true));
  engine.add(1, prompt(1, 30), 1);
  engine.run();
  engine.settle();
  flood(&engine, 10, 10);
  int32_t num_reads = 0;
  engine.loses_block = [&] { return ++num_reads == 4; };
  engine.add(2, prompt(1, 30), 1);
  engine.run();
  CHECK_EQ(engine.num_lost, 1);
  CHECK_EQ(engine.requests.at(2).num_cached_tokens, 12);
}

TEST(tiers, a_preempted_request_comes_back_from_the_host) {
  SchedulerConfig config = tier_config(16, 100);
  FakeEngine engine(config);
  engine.add(1, prompt(1, 16), 32);
  engine.add(2, prompt(500, 16), 32);
  engine.run();
  CHECK(counters(engine).num_preemptions > 0);
  CHECK(engine.num_loaded > 0);
}

}  // namespace
}  // namespace hocket
