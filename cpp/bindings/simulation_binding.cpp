#include "simulation_binding.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "simulation/simulation_loop.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
Array<T> as_array(const std::vector<T>& values) {
  return Array<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename T, size_t kColumns>
Array<T> as_array(const std::vector<std::array<T, kColumns>>& rows) {
  return Array<T>({rows.size(), kColumns}, rows.empty() ? nullptr : rows.front().data());
}

// Keeps the arrays that the loop looks at.
class Columns {
 public:
  explicit Columns(const py::dict& columns) : columns_(columns) {}

  template <typename T>
  std::span<const T> get(const char* name) const {
    const py::object column = columns_[name];
    if (!py::isinstance<Array<T>>(column)) throw py::type_error(std::string(name) + " has the wrong type or layout");
    const auto array = py::reinterpret_borrow<Array<T>>(column);
    if (array.ndim() != 1) throw py::value_error(std::string(name) + " must have one dimension");
    return {array.data(), static_cast<size_t>(array.size())};
  }

  SimulatedRequests requests() const {
    return {get<double>("arrival_s"),
            get<int32_t>("follows"),
            get<int32_t>("num_outputs"),
            get<uint8_t>("request_class"),
            get<int64_t>("priority"),
            get<double>("ttft_target_s"),
            get<double>("itl_target_s"),
            get<double>("tpot_target_s"),
            {get<int64_t>("run_offsets"), get<uint64_t>("run_streams"), get<int32_t>("run_ends"),
             get<uint64_t>("continuations")}};
  }

 private:
  py::dict columns_;
};

class LoopObject {
 public:
  LoopObject(const SchedulerConfig& config, const Estimates& estimates, const py::dict& columns,
             const SimulationOptions& options)
      : columns_(py::dict(columns.attr("copy")())), loop_(config, estimates, columns_.requests(), options) {}

  bool run(int64_t max_steps) {
    const py::gil_scoped_release release;
    return loop_.run(max_steps);
  }

  const SimulationLoop& loop() const { return loop_; }

 private:
  Columns columns_;
  SimulationLoop loop_;
};

py::dict records(const LoopObject& object) {
  const RequestRecords& r = object.loop().records();
  std::vector<uint8_t> outcome;
  outcome.reserve(r.outcome.size());
  for (const SimulatedOutcome value : r.outcome) outcome.push_back(static_cast<uint8_t>(value));
  return py::dict(
      "outcome"_a = as_array(outcome), "arrival_s"_a = as_array(r.arrival_s), "scheduled_s"_a = as_array(r.scheduled_s),
      "first_token_s"_a = as_array(r.first_token_s), "last_token_s"_a = as_array(r.last_token_s),
      "max_itl_s"_a = as_array(r.max_itl_s), "num_output_tokens"_a = as_array(r.num_output_tokens),
      "num_itl_violations"_a = as_array(r.num_itl_violations),
      "num_tpot_violations"_a = as_array(r.num_tpot_violations), "num_cached_tokens"_a = as_array(r.num_cached_tokens),
      "num_preemptions"_a = as_array(r.num_preemptions));
}

py::dict samples(const LoopObject& object) {
  const SimulationSamples& s = object.loop().samples();
  return py::dict("time_s"_a = as_array(s.time_s), "num_running"_a = as_array(s.num_running),
                  "num_waiting"_a = as_array(s.num_waiting), "num_free_units"_a = as_array(s.num_free_units),
                  "num_cached_units"_a = as_array(s.num_cached_units));
}

py::dict totals(const LoopObject& object) {
  const SimulationTotals& totals = object.loop().totals();
  const SchedulerStats stats = object.loop().scheduler().stats();
  const SchedulerCounters& counters = stats.counters;
  const auto actions = py::dict(
      "num_preempted"_a = counters.num_preempted, "num_conversions"_a = counters.num_conversions,
      "num_ratio_steps"_a = counters.num_ratio_steps, "num_recomputed_tokens"_a = counters.num_recomputed_tokens,
      "num_hit_tokens"_a = counters.num_hit_tokens, "num_restores"_a = counters.num_restores);
  return py::dict(
      "end_s"_a = object.loop().now(), "busy_s"_a = totals.busy_s, "num_steps"_a = totals.num_steps,
      "num_scheduled_tokens"_a = totals.num_scheduled_tokens, "num_scheduled_seqs"_a = totals.num_scheduled_seqs,
      "num_preemptions"_a = stats.counters.num_preemptions, "num_evicted_blocks"_a = stats.num_evicted_blocks,
      "num_units"_a = stats.num_units, "actions"_a = actions);
}

Array<int64_t> itl_histogram(const LoopObject& object, int32_t request_class) {
  if (request_class < 0 || request_class >= kNumRequestClasses) throw py::value_error("there is no such request class");
  const auto& counts = object.loop().itl_histogram(request_class).counts();
  return Array<int64_t>(static_cast<py::ssize_t>(counts.size()), counts.data());
}

py::tuple token_times(const LoopObject& object) {
  const TokenTimes& times = object.loop().token_times();
  return py::make_tuple(as_array(times.request), as_array(times.time_s));
}

Array<int32_t> synthetic_tokens(uint64_t stream, int64_t start, int64_t end) {
  if (start < 0 || end < start) throw py::value_error("expected 0 <= start <= end");
  Array<int32_t> tokens(end - start);
  int32_t* data = tokens.mutable_data();
  for (int64_t position = start; position < end; ++position) {
    *data++ = synthetic_token(stream, static_cast<uint64_t>(position));
  }
  return tokens;
}

}  // namespace

void bind_simulation(py::module_& core) {
  py::module_ m = core.def_submodule("simulation", "The scheduler under a virtual clock.");
  py::class_<LoopObject>(m, "SimulationLoop")
      .def(py::init([](const SchedulerConfig& config, const Estimates& estimates, const py::dict& requests,
                       bool keep_token_times, double sample_interval_s, bool overlap_transfers,
                       std::vector<double> step_errors, uint64_t error_seed) {
             return std::make_unique<LoopObject>(
                 config, estimates, requests,
                 SimulationOptions{keep_token_times, sample_interval_s, overlap_transfers, std::move(step_errors),
                                   error_seed});
           }),
           "config"_a, "estimates"_a, "requests"_a, py::kw_only(), "keep_token_times"_a = false,
           "sample_interval_s"_a = 0.0, "overlap_transfers"_a = true, "step_errors"_a = std::vector<double>{},
           "error_seed"_a = 0)
      .def("run", &LoopObject::run, "max_steps"_a)
      .def_property_readonly("now", [](const LoopObject& self) { return self.loop().now(); })
      .def_property_readonly("num_ended", [](const LoopObject& self) { return self.loop().num_ended(); })
      .def("records", &records)
      .def("samples", &samples)
      .def("totals", &totals)
      .def("itl_histogram", &itl_histogram, "request_class"_a)
      .def("token_times", &token_times)
      .def("check_invariants", [](const LoopObject& self) { self.loop().scheduler().check_invariants(); });
  m.def("synthetic_tokens", &synthetic_tokens, "stream"_a, "start"_a, "end"_a);
  m.attr("ITL_SMALLEST_S") = ItlHistogram::kSmallest;
  m.attr("ITL_GROWTH") = ItlHistogram::kGrowth;
}

}  // namespace hocket
