#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

using Int32Array = py::array_t<int32_t, py::array::c_style>;

// Token ids as the core wants them. A value that is no int32 becomes -1, which the core refuses as invalid; something
// that is no integer raises TypeError.
class TokenIds {
 public:
  explicit TokenIds(const py::object& source) {
    if (py::isinstance<Int32Array>(source)) {
      array_ = py::reinterpret_borrow<Int32Array>(source);
      if (array_.ndim() != 1) throw py::value_error("token ids must have one dimension");
      view_ = {array_.data(), static_cast<size_t>(array_.size())};
    } else {
      copy(py::reinterpret_steal<py::object>(PySequence_Fast(source.ptr(), "token ids must be a sequence")));
      view_ = copy_;
    }
  }

  std::span<const int32_t> view() const { return view_; }

 private:
  void copy(const py::object& sequence) {
    if (!sequence) throw py::error_already_set();
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence.ptr());
    PyObject** items = PySequence_Fast_ITEMS(sequence.ptr());
    copy_.reserve(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(items[i]));
      if (!index) throw py::error_already_set();
      int overflow = 0;
      const int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
      copy_.push_back(std::in_range<int32_t>(value) && !overflow ? static_cast<int32_t>(value) : -1);
    }
  }

  Int32Array array_;
  std::vector<int32_t> copy_;
  std::span<const int32_t> view_;
};

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
      plan_ = py::cast(PlanObject{&plan, owner_, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
                                  {},    {},     {}, {}, {}, {}, {}, {}, {}, {}, {}, {}});
    }
    return plan_;
  }

  py::object commit(const Int32Array& sampled, double now) {
    if (sampled.ndim() != 1) throw py::value_error("sampled_token_ids must have one dimension");
    const StepOutput& output = scheduler_->commit({sampled.data(), static_cast<size_t>(sampled.size())}, now);
    if (!output_) output_ = py::cast(OutputObject{&output, owner_, {}, {}, {}, {}, {}});
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
                      std::optional<double> itl_target, const std::string& cache_salt, const std::string& tenant,
                      const std::string& session_id) {
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
  spec.ttft_target = ttft_target.value_or(kNever);
  spec.itl_target = itl_target.value_or(kNever);
  spec.cache_salt = cache_salt;
  spec.tenant = tenant;
  spec.session_id = session_id;
  return object.scheduler().add_request(spec);
}

py::dict stats(SchedulerObject& object) {
  const SchedulerStats stats = object.scheduler().stats();
  const SchedulerCounters& counters = stats.counters;
  return py::dict(
      "num_running"_a = stats.num_running, "num_waiting"_a = stats.num_waiting,
      "num_waiting_tokens"_a = stats.num_waiting_tokens, "num_units"_a = stats.num_units,
      "num_free_units"_a = stats.num_free_units, "num_cached_units"_a = stats.num_cached_units,
      "num_kind_tokens"_a = stats.num_kind_tokens, "num_kind_units"_a = stats.num_kind_units,
      "num_uncached_tokens"_a = stats.num_uncached_tokens, "num_conversions"_a = counters.num_conversions,
      "num_recomputed_tokens"_a = counters.num_recomputed_tokens, "num_loaded_tokens"_a = counters.num_loaded_tokens,
      "num_steps"_a = counters.num_steps, "num_prompt_tokens"_a = counters.num_prompt_tokens,
      "num_output_tokens"_a = counters.num_output_tokens,
      "num_cached_prompt_tokens"_a = counters.num_cached_prompt_tokens,
      "num_queried_prompt_tokens"_a = counters.num_queried_prompt_tokens,
      "num_preemptions"_a = counters.num_preemptions, "num_evicted_blocks"_a = stats.num_evicted_blocks,
      "num_preempted"_a = counters.num_preempted, "class_seconds"_a = counters.class_seconds,
      "offline_only_seconds"_a = counters.offline_only_seconds, "num_finished"_a = counters.num_finished,
      "num_hit_tokens"_a = counters.num_hit_tokens, "num_restores"_a = counters.num_restores,
      "restore_seconds_saved"_a = counters.restore_seconds_saved, "num_announcements"_a = counters.num_announcements,
      "num_announced_requests"_a = counters.num_announced_requests, "lead_seconds"_a = counters.lead_seconds,
      "num_prepared_tokens"_a = counters.num_prepared_tokens, "num_wasted_tokens"_a = counters.num_wasted_tokens,
      "num_host_blocks"_a = stats.num_host_blocks, "num_free_host_blocks"_a = stats.num_free_host_blocks,
      "num_disk_blocks"_a = stats.num_disk_blocks, "num_sessions"_a = stats.num_sessions,
      "num_leases"_a = stats.num_leases, "num_saved_blocks"_a = stats.tiers.num_saved_blocks,
      "num_stored_blocks"_a = stats.tiers.num_stored_blocks, "num_fetched_blocks"_a = stats.tiers.num_fetched_blocks,
      "num_lost_blocks"_a = stats.tiers.num_lost_blocks, "num_loaded_blocks"_a = stats.tiers.num_loaded_blocks,
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
  const SessionReport report = object.scheduler().advise(spec, now);
  return py::make_tuple(report.is_known, report.num_tokens, report.tier_tokens, static_cast<int>(report.action),
                        report.lease_seconds < 0 ? py::object(py::none()) : py::cast(report.lease_seconds));
}

py::dict latency(SchedulerObject& object) {
  const LatencyRefiner& refiner = object.scheduler().latency();
  return py::dict("model"_a = refiner.model(), "mean_relative_error"_a = refiner.mean_relative_error(),
                  "num_held_out"_a = refiner.num_held_out(), "num_observed"_a = refiner.num_observed());
}

}  // namespace

void bind_scheduler(py::module_& module) {
  py::class_<SchedulerObject>(module, "Scheduler")
      .def(py::init([](const SchedulerConfig& config, const std::optional<Estimates>& estimates) {
             return std::make_unique<SchedulerObject>(config, estimates.value_or(Estimates()));
           }),
           "config"_a, "estimates"_a = py::none())
      .def("add_request", &add_request, "request_id"_a, "prompt_token_ids"_a, py::kw_only(), "max_tokens"_a,
           "min_tokens"_a = 0, "stop_token_ids"_a = py::tuple(), "request_class"_a = 0, "priority"_a = 0,
           "arrival_time"_a = 0.0, "ttft_target"_a = py::none(), "itl_target"_a = py::none(), "cache_salt"_a = "",
           "tenant"_a = "", "session_id"_a = "")
      .def(
          "abort", [](SchedulerObject& self, uint64_t id) { return self.scheduler().abort(id); }, "request_id"_a)
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
      .def("stats", &stats)
      .def("latency", &latency)
      .def("check_invariants", [](SchedulerObject& self) { self.scheduler().check_invariants(); })
      .def("reset_prefix_cache", [](SchedulerObject& self) { return self.scheduler().reset_prefix_cache(); });
}

}  // namespace hocket
