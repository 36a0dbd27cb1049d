#include "transfers/step_loads.h"

#include <algorithm>

#include "base/check.h"

namespace hocket {

StepLoads::StepLoads(SchedulerState* state) : requests_(state->requests), memory_(state->memory), tiers_(state->tiers) {
  loads_.reserve(state->config.max_num_seqs);
}

void StepLoads::add(const StepLoad& load) {
  tiers_.hold(std::span(requests_.keys[load.slot]).subspan(load.begin, load.end - load.begin));
  loads_.push_back(load);
}

void StepLoads::drop(Slot slot) {
  const auto load = std::ranges::find(loads_, slot, &StepLoad::slot);
  if (load == loads_.end()) return;
  tiers_.release(std::span(requests_.keys[slot]).subspan(load->begin, load->end - load->begin));
  loads_.erase(load);
}

void StepLoads::write() {
  for (const auto& [slot, begin, end, is_return] : loads_) {
    HOCKET_CHECK(requests_.num_scheduled_tokens[slot] > 0, "blocks are loaded for a step without their request");
    const auto blocks = memory_.tables().blocks(requests_.row[slot]);
    tiers_.load_for_step(std::span(requests_.keys[slot]).subspan(begin, end - begin),
                         blocks.subspan(begin, end - begin));
  }
}

int64_t StepLoads::num_blocks() const {
  int64_t num_blocks = 0;
  for (const StepLoad& load : loads_) num_blocks += load.end - load.begin;
  return num_blocks;
}

}  // namespace hocket
