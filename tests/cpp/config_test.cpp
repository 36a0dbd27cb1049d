#include "base/config.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "policies/policy.h"
#include "testing.h"

namespace hocket {
namespace {

SchedulerConfig good() {
  SchedulerConfig config;
  config.num_units = 64;
  config.num_layers = 6;
  return config;
}

std::string complaint(const SchedulerConfig& config) {
  try {
    config.validate();
    require_policy(config.policy);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(config, derives_the_layout) {
  SchedulerConfig config = good();
  CHECK_EQ(complaint(config), std::string());
  CHECK_EQ(config.num_groups(), 2);  // layers 0-3, 4-5
  CHECK_EQ(config.units_per_block(), 4);
  CHECK_EQ(config.num_blocks(), 16);
  CHECK_EQ(config.blocks_for(16), 1);
  CHECK_EQ(config.blocks_for(17), 2);
  config.max_model_len = 100;
  CHECK_EQ(config.max_blocks_per_seq(), 7);
}

TEST(config, names_the_bad_field) {
  using Field = int32_t SchedulerConfig::*;
  const std::vector<std::pair<Field, std::string>> fields = {
      {&SchedulerConfig::num_layers, "num_layers"},
      {&SchedulerConfig::layers_per_unit, "layers_per_unit"},
      {&SchedulerConfig::block_size, "block_size"},
      {&SchedulerConfig::max_num_seqs, "max_num_seqs"},
      {&SchedulerConfig::max_num_batched_tokens, "max_num_batched_tokens"},
      {&SchedulerConfig::max_model_len, "max_model_len"},
      {&SchedulerConfig::max_num_waiting, "max_num_waiting"}};
  for (const auto& [field, name] : fields) {
    SchedulerConfig config = good();
    config.*field = 0;
    CHECK(complaint(config).starts_with(name));
  }
}

TEST(config, refuses_a_pool_without_one_block) {
  SchedulerConfig config = good();
  config.num_units = 3;
  CHECK(complaint(config).starts_with("num_units"));
  config.num_units = 4;
  CHECK_EQ(complaint(config), std::string());
}

TEST(config, refuses_an_unknown_policy) {
  SchedulerConfig config = good();
  config.policy = "best";
  CHECK(complaint(config).starts_with("policy"));
}

TEST(config, derives_the_layout_of_the_hidden_cache) {
  SchedulerConfig config = good();
  CHECK_EQ(config.hidden_units_per_block(), 0);
  CHECK_EQ(config.hidden_ratio(), 1.0);
  CHECK(!config.has_forms());
  config.hidden_units_per_group = 1;
  CHECK_EQ(complaint(config), std::string());
  CHECK_EQ(config.hidden_units_per_block(), 2);  // of 4 as K and V
  CHECK_EQ(config.hidden_ratio(), 0.5);
  CHECK(config.has_forms());
  SchedulerConfig partial = good();
  partial.enable_prefix_caching = false;
  partial.enable_partial_caching = true;
  CHECK_EQ(complaint(partial), std::string());
  CHECK(partial.has_forms());
}

TEST(config, keeps_requests_as_hidden_states_only_where_there_are_any) {
  SchedulerConfig config = good();
  config.cache_kind = "hidden";
  CHECK(complaint(config).starts_with("cache_kind hidden needs hidden_units_per_group"));
  config.hidden_units_per_group = 1;
  CHECK_EQ(complaint(config), std::string());
  config.cache_kind = "neither";
  CHECK(complaint(config).starts_with("cache_kind must be"));
}

TEST(config, keeps_blocks_in_int8_beside_k_and_v_only) {
  SchedulerConfig config = good();
  config.int8_units_per_group = 1;
  CHECK_EQ(complaint(config), std::string());
  CHECK(config.compact_kind() == CacheKind::kInt8 && config.has_kinds() && !config.has_forms());
  CHECK_EQ(config.compact_units_per_block(), config.num_groups());
  config.max_guessed_tokens = 4;
  CHECK_EQ(complaint(config), std::string());
  config.enable_partial_caching = true;
  CHECK(complaint(config).starts_with("int8_units_per_group needs every token cached"));
  config = good();
  config.cache_kind = "int8";
  CHECK(complaint(config).starts_with("cache_kind int8 needs int8_units_per_group"));
}

TEST(config, refuses_hidden_states_that_take_as_much_as_k_and_v) {
  SchedulerConfig config = good();
  for (const int32_t num_units : {-1, 2, 7}) {
    config.hidden_units_per_group = num_units;
    CHECK(complaint(config).starts_with("hidden_units_per_group"));
  }
}

TEST(config, refuses_what_is_out_of_range_by_name) {
  const auto after = [](auto&& change) {
    SchedulerConfig config = good();
    change(&config);
    return complaint(config);
  };
  CHECK(after([](SchedulerConfig* c) { c->num_host_units = -1; }).starts_with("num_host_units"));
  CHECK(after([](SchedulerConfig* c) { c->past_target_decay = -0.1; }).starts_with("past_target_decay"));
  CHECK(after([](SchedulerConfig* c) { c->past_target_decay = 1.1; }).starts_with("past_target_decay"));
  CHECK(after([](SchedulerConfig* c) { c->past_target_decay = std::nan(""); }).starts_with("past_target_decay"));
  CHECK(after([](SchedulerConfig* c) { c->max_wait_ms = -1; }).starts_with("max_wait_ms"));
  CHECK(after([](SchedulerConfig* c) { c->max_wait_ms = std::nan(""); }).starts_with("max_wait_ms"));
  CHECK(after([](SchedulerConfig* c) { c->max_offline_wait_ms = -1; }).find("max_offline_wait_ms") !=
        std::string::npos);
  CHECK(after([](SchedulerConfig* c) { c->preemption = "swop"; }).starts_with("preemption"));
  CHECK(after([](SchedulerConfig* c) { c->max_decode_step_ms = -1; }).starts_with("max_decode_step_ms"));
  CHECK(after([](SchedulerConfig* c) { c->enable_mixed_steps = false; }).starts_with("enable_mixed_steps"));
}

TEST(config, takes_what_is_at_the_edge_of_its_range) {
  SchedulerConfig config = good();
  config.past_target_decay = 1.0;
  config.max_wait_ms = 0;
  config.max_offline_wait_ms = std::numeric_limits<double>::infinity();
  config.enable_chunked_prefill = config.enable_mixed_steps = false;
  for (const char* preemption : {"recompute", "swap", "restore"}) {
    config.preemption = preemption;
    CHECK_EQ(complaint(config), std::string());
  }
}

TEST(config, knows_every_policy_by_name) {
  for (const char* policy : {"fcfs", "priority", "apt", "bs", "bs_e", "bs_es", "echo", "ellm", "hocket"}) {
    SchedulerConfig config = good();
    config.policy = policy;
    CHECK_EQ(complaint(config), std::string());
  }
}

}  // namespace
}  // namespace hocket
