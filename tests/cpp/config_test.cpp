#include "config.h"

#include <stdexcept>

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

}  // namespace
}  // namespace hocket
