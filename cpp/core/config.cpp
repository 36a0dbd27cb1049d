#include "config.h"

#include <stdexcept>
#include <string>

#include "policy.h"

namespace hocket {
namespace {

void require_at_least_one(const char* field, int32_t value) {
  if (value >= 1) return;
  throw std::invalid_argument(std::string(field) + " must be at least 1, not " + std::to_string(value));
}

}  // namespace

void SchedulerConfig::validate() const {
  require_at_least_one("num_layers", num_layers);
  require_at_least_one("layers_per_unit", layers_per_unit);
  require_at_least_one("block_size", block_size);
  require_at_least_one("max_num_seqs", max_num_seqs);
  require_at_least_one("max_num_batched_tokens", max_num_batched_tokens);
  require_at_least_one("max_model_len", max_model_len);
  require_at_least_one("max_num_waiting", max_num_waiting);
  if (num_units < units_per_block()) {
    throw std::invalid_argument("num_units must be at least " + std::to_string(units_per_block()) +
                                " (one block), not " + std::to_string(num_units));
  }
  make_policy(policy);
}

}  // namespace hocket
