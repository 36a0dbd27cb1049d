// A history of a scheduler in a tiny pool: which configuration, and what is called in which order with what, is drawn
// from a source of decisions. Random numbers are one (scheduler_random_test.cpp), a fuzzer's bytes another
// (tests/fuzz/core_fuzz.cpp).
//
// Random needs: int32_t between(int32_t low, int32_t high), both included, and bool chance(int32_t percent).
#pragma once

#include <string>
#include <utility>

#include "fake_engine.h"
#include "testing.h"

namespace hocket::testing {

template <class Random>
SchedulerConfig random_config(Random* random) {
  SchedulerConfig config;
  config.num_layers = random->between(1, 6);
  config.layers_per_unit = random->between(1, 4);
  config.block_size = random->between(1, 5);
  config.num_units = config.units_per_block() * random->between(1, 20) + random->between(0, 1);
  config.max_num_seqs = random->between(1, 6);
  config.max_num_batched_tokens = random->between(1, 24);
  config.max_model_len = random->between(2, 48);
  config.max_num_waiting = random->between(1, 12);
  constexpr const char* kPolicies[] = {"fcfs", "priority", "apt", "bs", "bs_e", "bs_es", "echo", "ellm", "hocket"};
  config.policy = kPolicies[random->between(0, 8)];
  config.enable_prefix_caching = random->chance(75);
  config.enable_chunked_prefill = random->chance(70);
  config.enable_mixed_steps = config.enable_chunked_prefill || random->chance(50);
  config.hidden_units_per_group = random->chance(40);
  config.num_host_units = random->chance(40) ? random->between(0, config.num_units) : 0;
  constexpr const char* kPreemptions[] = {"recompute", "swap", "restore"};
  config.preemption = kPreemptions[random->between(0, 2)];
  const bool has_host = config.enable_prefix_caching && config.num_host_units == 0 && random->chance(60);
  config.num_host_blocks = has_host ? random->between(1, 30) : 0;
  config.enable_disk = has_host && random->chance(50);
  config.save_sessions_only = has_host && random->chance(40);
  config.overlap_restores = has_host && random->chance(50);
  config.max_num_sessions = random->between(1, 4);
  config.enable_partial_caching = random->chance(config.enable_prefix_caching ? 30 : 70);
  config.past_target_decay = random->chance(50) ? 0.0 : 0.4;
  config.max_wait_ms = random->chance(50) ? 1e9 : random->between(0, 20) * 1000;
  config.refine_latency = random->chance(30);
  // Without draws of their own, so that kept inputs mean what they meant.
  if (!config.has_forms() && config.num_host_units == 0 && config.max_model_len % 2 == 0) {
    config.int8_units_per_group = 1;
    config.preemption = "recompute";
    if (config.max_model_len % 3 == 0) config.cache_kind = "int8";
  }
  config.max_guessed_tokens = config.has_forms() ? 0 : config.max_num_waiting % 6;
  for (bool* stage : {&config.enable_residents, &config.enable_deadlines, &config.enable_plan_search,
                      &config.enable_task_aware_eviction, &config.enable_reserve}) {
    *stage = random->chance(80);
  }
  return config;
}

template <class Random>
Estimates random_estimates(const SchedulerConfig& config, Random* random) {
  Estimates estimates;
  if (random->chance(30)) return estimates;
  LatencyCoefficients k;
  k.step_base = 0.05 * random->between(0, 20);
  k.prefill_token = 0.01 * random->between(1, 20);
  k.decode_base = 0.05 * random->between(0, 5);
  k.decode_seq = 0.01 * random->between(1, 20);
  k.decode_context = 1e-4 * random->between(0, 20);
  k.hidden_token = 1e-3 * random->between(0, 5);
  k.overlap = 0.1 * random->between(0, 10);
  estimates.latency = LatencyModel(LatencyForm::kCorrected, k);
  estimates.host_bytes_per_second = random->between(0, 100);
  estimates.unit_bytes = 1.0;
  estimates.costs = {.flops_per_token = 1.0,
                     .flops_per_pair = 0.01,
                     .flops_per_logit = 1.0,
                     .flops_per_second = 100.0,
                     .weight_bytes = 1.0 * random->between(1, 50),
                     .head_bytes = 1.0,
                     .kv_bytes_per_token = double(config.units_per_block()) / config.block_size,
                     .workspace_bytes_per_token = 0.01,
                     .bytes_per_second = 10.0};
  return estimates;
}

template <class Random>
struct History {
  Random random;
  SchedulerConfig config;
  FakeEngine engine;
  uint64_t next_id = 0;
  int64_t num_accepted = 0;
  int64_t num_forced = 0;  // named, most of them more than once
  int64_t num_asked = 0;   // requests that the small model was asked about
  int64_t num_suggested = 0;

  explicit History(Random source)
      : random(std::move(source)),
        config(random_config(&random)),
        engine(config, 3, random_estimates(config, &random)) {
    const int32_t speed = random.between(1, 100);
    engine.ends_move = [this, speed] { return random.chance(speed); };
    const int32_t loss = random.chance(50) ? 0 : random.between(0, 60);
    engine.period = config.max_model_len % 4;
    engine.loses_block = [this, loss] { return random.chance(loss); };
  }

  void add() {
    RequestSpec spec;
    spec.id = next_id++;
    spec.max_tokens = random.between(1, 20);
    spec.priority = random.between(0, 2);
    spec.request_class = random.between(0, 2);
    if (random.chance(50)) spec.targets.ttft = random.between(1, 10);
    double& per_token = spec.id % 3 == 0 ? spec.targets.tpot : spec.targets.itl;
    if (random.chance(50)) per_token = 0.5 * random.between(1, 6);
    spec.arrival_time = engine.now - random.between(0, 3);
    Tokens prompt(random.between(1, 20));
    for (int32_t& token : prompt) token = random.between(0, 1);  // so that prompts share prefixes
    const Tokens stops = random.chance(30) ? Tokens{2} : Tokens{};
    const std::string session = random.chance(60) ? session_name() : "";
    spec.session_id = session;
    spec.is_guessable = spec.id % 4 != 1;
    num_accepted += engine.add(spec, prompt, random.chance(20) ? "other" : "", stops) == AddStatus::kOk;
  }

  std::string session_name() { return "s" + std::to_string(random.between(0, 5)); }

  void advise() {
    Tokens draft(random.chance(50) ? random.between(0, 30) : 0);
    for (int32_t& token : draft) token = random.between(0, 1);
    const auto event = static_cast<AdvisoryEvent>(random.between(0, kNumAdvisoryEvents - 1));
    const std::string salt = random.chance(20) ? "other" : "";
    const int32_t lease = random.between(0, 20);
    const std::string session = session_name();
    engine.advise(session, event, lease, draft, salt);
    // Who is asked for and unknown comes back from an earlier life.
    if (event == AdvisoryEvent::kQuery) engine.scheduler.remember_session({"", salt, session}, draft);
  }

  void abort() {
    if (next_id > 0) engine.abort(random.between(0, static_cast<int32_t>(next_id) - 1));
  }

  // Some requests' next tokens are known, mostly; without a draw of its own, as max_guessed_tokens.
  void force() {
    for (const auto& [id, request] : engine.requests) {
      const uint64_t draw = mix(id, request.output.size());
      if (request.reason != FinishReason::kNone || id % 4 > 1 || draw % 3 == 0) continue;
      const Tokens all = engine.expected_output(request);
      const auto num_known = std::min<size_t>(all.size(), request.output.size() + (draw >> 8) % 7);
      Tokens tokens(all.begin() + std::ssize(request.output), all.begin() + static_cast<std::ptrdiff_t>(num_known));
      if ((draw >> 16) % 8 == 0) tokens.push_back(1);
      num_forced += engine.scheduler.force(id, tokens) ? std::ssize(tokens) : 0;
    }
  }

  // Others' are guessed by a small model, now and then wrongly, whether it was asked or not.
  void suggest() {
    engine.scheduler.note_model(1, 1, 1e-9);
    num_asked += std::ssize(engine.scheduler.ask_model(engine.now).slots);
    for (const auto& [id, request] : engine.requests) {
      const uint64_t draw = mix(id + 7, request.output.size());
      if (request.reason != FinishReason::kNone || id % 4 != 2 || draw % 3 == 0) continue;
      const Tokens all = engine.expected_output(request);
      const auto num_known = std::min<size_t>(all.size(), request.output.size() + (draw >> 8) % 5);
      Tokens tokens(all.begin() + std::ssize(request.output), all.begin() + static_cast<std::ptrdiff_t>(num_known));
      if ((draw >> 16) % 4 == 0) tokens.push_back(1);
      num_suggested += engine.scheduler.suggest(id, tokens) ? std::ssize(tokens) : 0;
    }
  }

  void step() {
    force();
    suggest();
    engine.step([&] {
      if (random.chance(20)) abort();
      if (random.chance(10)) add();
      if (random.chance(10)) advise();
      engine.scheduler.check_invariants();
    });
  }

  void act() {
    const int32_t choice = random.between(1, 100);
    if (choice <= 30) {
      add();
    } else if (choice <= 35) {
      abort();
    } else if (choice <= 36) {
      engine.scheduler.reset_prefix_cache();
    } else if (choice <= 44) {
      advise();
    } else if (choice <= 45) {
      engine.shrink_disk();
    } else {
      step();
    }
    engine.scheduler.check_invariants();
  }

  void check_end() {
    const SchedulerStats stats = engine.scheduler.stats();
    int64_t num_finished = 0;
    for (const int64_t count : stats.counters.num_finished) num_finished += count;
    CHECK_EQ(num_finished, num_accepted);
    for (const auto& [id, request] : engine.requests) CHECK(request.reason != FinishReason::kNone);
    if (!engine.scheduler.has_moves()) CHECK_EQ(stats.num_free_units + stats.num_cached_units, stats.num_units);
  }
};

}  // namespace hocket::testing
