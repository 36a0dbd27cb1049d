// A step that the engine has planned and not ended, as the advisor was told of it.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "estimates/latency_model.h"
#include "requests/request.h"

namespace hocket {

struct OpenStep {
  double began = 0.0;
  double limit_seconds = 0.0;
  double prompt_seconds = 0.0;  // predicted, of online prompts
  BatchFeatures features;
  std::array<int64_t, kNumRequestClasses> num_tokens = {};
  std::vector<std::pair<Slot, uint64_t>> samplers;  // who will have one more token, by slot and id

  void reset(double now, double limit) {
    began = now;
    limit_seconds = limit;
    prompt_seconds = 0.0;
    features = {};
    num_tokens = {};
    samplers.clear();
  }

  // So many tokens of a request behind so many that are computed.
  void add(const RequestTable& requests, Slot slot, int32_t num, int32_t num_computed) {
    num_tokens[requests.request_class[slot]] += num;
    if (num_computed + num >= requests.num_tokens[slot]) samplers.emplace_back(slot, requests.id[slot]);
    if (num == 1) {
      features.add_decode(num_computed + 1);
    } else {
      features.add_chunk(num_computed, num);
    }
  }

  // Of the samplers, those that have not ended meanwhile.
  void list_live_samplers(const RequestTable& requests, std::vector<Slot>* slots) const {
    slots->clear();
    for (const auto& [slot, id] : samplers) {
      if (requests.state[slot] != RequestState::kFree && requests.id[slot] == id) slots->push_back(slot);
    }
  }
};

}  // namespace hocket
