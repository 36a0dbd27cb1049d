#include <pybind11/stl.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "token_ids.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

// Scheduler with the Python objects that view its plan and its output.
class SchedulerObject {
 public:
  SchedulerObject(const SchedulerConfig& config, const Estimates& estimates)
      : scheduler_(std::make_shared<Scheduler>(config, estimates)) {
    owner_ = py::capsule(new std::shared_ptr<Scheduler>(scheduler_),
                         [](void* pointer) { delete static_cast<std::shared_ptr<Scheduler>*>(pointer); });
  }

  py::object schedule(double now) {
    const BatchPlan& plan = scheduler_->schedule(now);
    if (!plan_) {
      plan_ = py::cast(PlanObject{&plan, owner_, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
                                  {},    {},     {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}});
    }
    return plan_;
  }

  py::object commit(const Int32Array& sampled, double now) {
    if (sampled.ndim() != 1) throw py::value_error("sampled_token_ids must have one dimension");
    const StepOutput& output = scheduler_->commit({sampled.data(), static_cast<size_t>(sampled.size())}, now);
    if (!output_) output_ = py::cast(OutputObject{&output, owner_, {}, {}, {}, {}, {}, {}});
    return output_;
  }

  Scheduler& scheduler() { return *scheduler_; }

 private:
  std::shared_ptr<Scheduler> scheduler_;
  py::object owner_;
  py::object plan_;
  py::object output_;
};

AddStatus add_request(SchedulerObject& object, uint64_t request_id, const py::object& prompt_token_ids,
                      int64_t max_tokens, int64_t min_tokens, const py::object& stop_token_ids, int32_t request_class,
                      int64_t priority, double arrival_time, std::optional<double> ttft_target,
                      std::optional<double> itl_target, std::optional<double> tpot_target,
                      const std::string& cache_salt, const std::string& tenant, const std::string& session_id,
                      int64_t num_prior_tokens, std::optional<double> last_token_time, bool is_guessable) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const TokenIds prompt(prompt_token_ids);
  const TokenIds stops(stop_token_ids);
  RequestSpec spec;
  spec.id = request_id;
  spec.prompt = prompt.view();
  spec.max_tokens = max_tokens;
  spec.min_tokens = min_tokens;
  spec.stop_token_ids = stops.view();
  spec.request_class = request_class;
  spec.priority = priority;
  spec.arrival_time = arrival_time;
  spec.targets = {ttft_target.value_or(kNever), itl_target.value_or(kNever), tpot_target.value_or(kNever)};
  spec.cache_salt = cache_salt;
  spec.tenant = tenant;
  spec.session_id = session_id;
  spec.num_prior_tokens = num_prior_tokens;
  spec.is_guessable = is_guessable;
  spec.last_token_time = last_token_time.value_or(arrival_time);
  return object.scheduler().add_request(spec);
}

std::optional<int32_t> max_running(const Residency& residency) {
  return residency.max_running == Residency::kEverybody ? std::nullopt : std::optional(residency.max_running);
}

py::dict stats(SchedulerObject& object) {
  const SchedulerStats stats = object.scheduler().stats();
  const SchedulerCounters& counters = stats.counters;
  return py::dict(
      "num_running"_a = stats.num_running, "num_waiting"_a = stats.num_waiting, "num_units"_a = stats.num_units,
      "num_free_units"_a = stats.num_free_units, "num_cached_units"_a = stats.num_cached_units,
      "num_kind_tokens"_a = stats.num_kind_tokens, "num_kind_units"_a = stats.num_kind_units,
      "num_uncached_tokens"_a = stats.num_uncached_tokens, "num_conversions"_a = counters.num_conversions,
      "num_recomputed_tokens"_a = counters.num_recomputed_tokens, "num_loaded_tokens"_a = counters.num_loaded_tokens,
      "num_ratio_steps"_a = counters.num_ratio_steps, "max_running"_a = max_running(stats.residency),
      "uncached_ratio"_a = stats.residency.uncached_ratio, "num_steps"_a = counters.num_steps,
      "num_prompt_tokens"_a = counters.num_prompt_tokens, "num_output_tokens"_a = counters.num_output_tokens,
      "num_cached_prompt_tokens"_a = counters.num_cached_prompt_tokens,
      "num_queried_prompt_tokens"_a = counters.num_queried_prompt_tokens,
      "num_guessed_tokens"_a = counters.num_guessed_tokens, "num_right_guesses"_a = counters.num_right_guesses,
      "num_preemptions"_a = counters.num_preemptions, "num_evicted_blocks"_a = stats.num_evicted_blocks,
      "num_preempted"_a = counters.num_preempted, "class_seconds"_a = counters.class_seconds,
      "offline_only_seconds"_a = counters.offline_only_seconds, "num_finished"_a = counters.num_finished,
      "num_hit_tokens"_a = counters.num_hit_tokens, "num_restores"_a = counters.num_restores,
      "restore_seconds_saved"_a = counters.restore_seconds_saved,
      "num_announced_requests"_a = counters.num_announced_requests,
      "num_prepared_tokens"_a = counters.num_prepared_tokens, "num_wasted_tokens"_a = counters.num_wasted_tokens,
      "num_host_blocks"_a = stats.num_host_blocks, "num_free_host_blocks"_a = stats.num_free_host_blocks,
      "predicted_ttft_seconds"_a = stats.predicted_ttft_seconds, "promised_itl_seconds"_a = stats.promised_itl_seconds,
      "reader_margin"_a = stats.reader_margin, "num_sessions"_a = stats.num_sessions, "num_leases"_a = stats.num_leases,
      "num_saved_blocks"_a = stats.tiers.num_saved_blocks, "num_stored_blocks"_a = stats.tiers.num_stored_blocks,
      "num_fetched_blocks"_a = stats.tiers.num_fetched_blocks, "num_lost_blocks"_a = stats.tiers.num_lost_blocks,
      "num_pulled_blocks"_a = stats.tiers.num_pulled_blocks, "num_unpulled_blocks"_a = stats.tiers.num_unpulled_blocks,
      "num_loaded_blocks"_a = stats.tiers.num_loaded_blocks,
      "step_time_error_ratio"_a = object.scheduler().latency().mean_relative_error());
}

// ---- tiers and sessions ----

using KeyArray = py::array_t<uint64_t, py::array::c_style | py::array::forcecast>;

std::vector<BlockKey> block_keys(const KeyArray& array) {
  if (array.ndim() != 2 || array.shape(1) != 2) throw py::value_error("keys must have the shape [num_blocks, 2]");
  std::vector<BlockKey> keys(static_cast<size_t>(array.shape(0)));
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = {array.data()[2 * i], array.data()[2 * i + 1]};
  return keys;
}

void complete_moves(SchedulerObject& object, const py::object& done, const py::object& failed) {
  const TokenIds done_ids(done);
  const TokenIds failed_ids(failed);
  object.scheduler().complete_moves(done_ids.view(), failed_ids.view());
}

py::tuple advise(SchedulerObject& object, const std::string& session_id, int32_t event, double now,
                 const std::string& tenant, const std::string& cache_salt, double lease_seconds,
                 const py::object& draft_token_ids) {
  if (event < 0 || event >= kNumAdvisoryEvents) throw py::value_error("there is no such event");
  const TokenIds draft(draft_token_ids);
  const AdvisorySpec spec{
      {tenant, cache_salt, session_id}, static_cast<AdvisoryEvent>(event), lease_seconds, draft.view()};
  const SessionState report = object.scheduler().advise(spec, now);
  return py::make_tuple(report.is_known, report.num_tokens, report.tier_tokens, static_cast<int>(report.action),
                        report.lease_seconds < 0 ? py::object(py::none()) : py::cast(report.lease_seconds));
}

bool remember_session(SchedulerObject& object, const std::string& session_id, const py::object& token_ids,
                      const std::string& tenant, const std::string& cache_salt) {
  const TokenIds tokens(token_ids);
  return object.scheduler().remember_session({tenant, cache_salt, session_id}, tokens.view());
}

Int32Array session_tokens(SchedulerObject& object, const std::string& session_id, const std::string& tenant,
                          const std::string& cache_salt) {
  const auto tokens = object.scheduler().session_tokens({tenant, cache_salt, session_id});
  return Int32Array(static_cast<py::ssize_t>(tokens.size()), tokens.data());
}

int32_t checked_peer(SchedulerObject& object, int32_t peer) {
  if (peer < 0 || peer >= Scheduler::kMaxPeers) throw py::value_error("there is no peer of that number");
  if (!object.scheduler().has_tiers()) throw py::value_error("without a host tier nothing is had of peers");
  return peer;
}

Int32Array lend(SchedulerObject& object, const KeyArray& keys) {
  std::vector<int32_t> slots;
  object.scheduler().lend(block_keys(keys), &slots);
  return Int32Array(static_cast<py::ssize_t>(slots.size()), slots.data());
}

py::array_t<bool> has_in_tiers(SchedulerObject& object, const KeyArray& array) {
  const std::vector<BlockKey> keys = block_keys(array);
  py::array_t<bool> found(static_cast<py::ssize_t>(keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) found.mutable_data()[i] = object.scheduler().has_in_tiers(keys[i]);
  return found;
}

py::list recent_sessions(SchedulerObject& object, int32_t max) {
  py::list names;
  object.scheduler().visit_recent_sessions(max, [&](const SessionName& name) {
    names.append(py::make_tuple(std::string(name.tenant), std::string(name.salt), std::string(name.id)));
  });
  return names;
}

// Tokens of each, and whose: (request id, its known tokens, how many of them are output).
py::tuple ask_model(SchedulerObject& object, double now) {
  const ModelQuestion& question = object.scheduler().ask_model(now);
  const RequestTable& requests = object.scheduler().requests();
  py::list asked;
  for (const Slot slot : question.slots) {
    const std::span<const int32_t> text = requests.known_tokens(slot);
    asked.append(py::make_tuple(requests.id[slot],
                                py::array_t<int32_t>(static_cast<py::ssize_t>(text.size()), text.data()),
                                requests.num_output_tokens(slot)));
  }
  return py::make_tuple(question.num_tokens, asked);
}

py::array_t<uint64_t> session_block_keys(const std::string& fingerprint, const std::string& salt,
                                         const py::object& token_ids, int32_t block_size) {
  if (block_size < 1) throw py::value_error("block_size must be positive");
  const TokenIds tokens(token_ids);
  std::vector<BlockKey> keys;
  append_block_keys(root_key(fingerprint, salt), tokens.view(), block_size, &keys);
  py::array_t<uint64_t> array({static_cast<py::ssize_t>(keys.size()), py::ssize_t{2}});
  if (!keys.empty()) std::memcpy(array.mutable_data(), keys.data(), keys.size() * sizeof(BlockKey));
  return array;
}

void bind_peers(py::class_<SchedulerObject>& scheduler) {
  scheduler
      .def(
          "note_on_peer",
          [](SchedulerObject& self, const KeyArray& keys, int32_t peer) {
            self.scheduler().note_on_peer(block_keys(keys), checked_peer(self, peer));
          },
          "keys"_a, "peer"_a)
      .def(
          "forget_peer",
          [](SchedulerObject& self, int32_t peer) { self.scheduler().forget_peer(checked_peer(self, peer)); }, "peer"_a)
      .def(
          "note_peer_rate",
          [](SchedulerObject& self, int32_t peer, double bytes_per_second) {
            if (!(bytes_per_second > 0)) throw py::value_error("bytes_per_second must be positive");
            self.scheduler().note_peer_rate(checked_peer(self, peer), bytes_per_second);
          },
          "peer"_a, "bytes_per_second"_a)
      .def("lend", &lend, "keys"_a)
      .def(
          "take_back",
          [](SchedulerObject& self, const KeyArray& keys) { self.scheduler().take_back(block_keys(keys)); }, "keys"_a)
      .def("has_in_tiers", &has_in_tiers, "keys"_a)
      .def(
          "adopt_session",
          [](SchedulerObject& self, const std::string& session_id, const py::object& token_ids,
             const std::string& tenant, const std::string& cache_salt) {
            const TokenIds tokens(token_ids);
            return self.scheduler().adopt_session({tenant, cache_salt, session_id}, tokens.view());
          },
          "session_id"_a, "token_ids"_a, py::kw_only(), "tenant"_a = "", "cache_salt"_a = "")
      .def(
          "pull_session",
          [](SchedulerObject& self, const std::string& session_id, const std::string& tenant,
             const std::string& cache_salt) { return self.scheduler().pull_session({tenant, cache_salt, session_id}); },
          "session_id"_a, py::kw_only(), "tenant"_a = "", "cache_salt"_a = "")
      .def("recent_sessions", &recent_sessions, "max_num_sessions"_a);
}

py::dict latency(SchedulerObject& object) {
  const LatencyRefiner& refiner = object.scheduler().latency();
  return py::dict("model"_a = refiner.model(), "mean_relative_error"_a = refiner.mean_relative_error(),
                  "num_held_out"_a = refiner.num_held_out(), "num_observed"_a = refiner.num_observed());
}

}  // namespace

void bind_scheduler(py::module_& module) {
  py::class_<SchedulerObject> scheduler(module, "Scheduler");
  scheduler
      .def(py::init([](const SchedulerConfig& config, const std::optional<Estimates>& estimates) {
             return std::make_unique<SchedulerObject>(config, estimates.value_or(Estimates()));
           }),
           "config"_a, "estimates"_a = py::none())
      .def("add_request", &add_request, "request_id"_a, "prompt_token_ids"_a, py::kw_only(), "max_tokens"_a,
           "min_tokens"_a = 0, "stop_token_ids"_a = py::tuple(), "request_class"_a = 0, "priority"_a = 0,
           "arrival_time"_a = 0.0, "ttft_target"_a = py::none(), "itl_target"_a = py::none(),
           "tpot_target"_a = py::none(), "cache_salt"_a = "", "tenant"_a = "", "session_id"_a = "",
           "num_prior_tokens"_a = 0, "last_token_time"_a = py::none(), "is_guessable"_a = true)
      .def("retry_seconds", [](SchedulerObject& self) { return self.scheduler().retry_seconds(); })
      .def(
          "abort", [](SchedulerObject& self, uint64_t id) { return self.scheduler().abort(id); }, "request_id"_a)
      .def(
          "force",
          [](SchedulerObject& self, uint64_t id, const py::object& token_ids) {
            const TokenIds tokens(token_ids);
            return self.scheduler().force(id, tokens.view());
          },
          "request_id"_a, "token_ids"_a)
      .def("ask_model", &ask_model, "now"_a)
      .def(
          "suggest",
          [](SchedulerObject& self, uint64_t id, const py::object& token_ids) {
            const TokenIds tokens(token_ids);
            return self.scheduler().suggest(id, tokens.view());
          },
          "request_id"_a, "token_ids"_a)
      .def(
          "note_model",
          [](SchedulerObject& self, int32_t num_requests, int32_t num_tokens, double seconds) {
            self.scheduler().note_model(num_requests, num_tokens, seconds);
          },
          "num_requests"_a, "num_tokens"_a, "seconds"_a)
      .def("schedule", &SchedulerObject::schedule, "now"_a)
      .def("commit", &SchedulerObject::commit, "sampled_token_ids"_a, "now"_a)
      .def("has_work", [](SchedulerObject& self) { return self.scheduler().has_work(); })
      .def("complete_moves", &complete_moves, "done"_a, "failed"_a = py::tuple())
      .def("has_moves", [](SchedulerObject& self) { return self.scheduler().has_moves(); })
      .def("has_background_work", [](SchedulerObject& self) { return self.scheduler().has_background_work(); })
      .def(
          "note_on_disk",
          [](SchedulerObject& self, const KeyArray& keys) { self.scheduler().note_on_disk(block_keys(keys)); },
          "keys"_a)
      .def(
          "forget_on_disk",
          [](SchedulerObject& self, const KeyArray& keys) { self.scheduler().forget_on_disk(block_keys(keys)); },
          "keys"_a)
      .def("advise", &advise, "session_id"_a, "event"_a, "now"_a, py::kw_only(), "tenant"_a = "", "cache_salt"_a = "",
           "lease_seconds"_a = 0.0, "draft_token_ids"_a = py::tuple())
      .def("remember_session", &remember_session, "session_id"_a, "token_ids"_a, py::kw_only(), "tenant"_a = "",
           "cache_salt"_a = "")
      .def("session_tokens", &session_tokens, "session_id"_a, py::kw_only(), "tenant"_a = "", "cache_salt"_a = "")
      .def("stats", &stats)
      .def("latency", &latency)
      .def("check_invariants", [](SchedulerObject& self) { self.scheduler().check_invariants(); })
      .def("reset_prefix_cache", [](SchedulerObject& self) { return self.scheduler().reset_prefix_cache(); });
  bind_peers(scheduler);
  module.def("block_keys", &session_block_keys, "fingerprint"_a, "cache_salt"_a, "token_ids"_a, "block_size"_a);
}

}  // namespace hocket
