#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "advisor/advisor.h"
#include "bindings.h"
#include "token_ids.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

std::span<const int32_t> view_of(const Int32Array& array) {
  if (array.ndim() != 1) throw py::value_error("slots and counts are arrays of one dimension");
  return {array.data(), static_cast<size_t>(array.size())};
}

Int32Array copy_of(const std::vector<int32_t>& values) {
  return Int32Array(static_cast<py::ssize_t>(values.size()), values.data());
}

py::tuple tuple_of(const Advice& advice) {
  return py::make_tuple(advice.num_tokens, advice.granted.size(), copy_of(advice.preempted), copy_of(advice.admitted),
                        copy_of(advice.limited), copy_of(advice.limits), copy_of(advice.order));
}

Slot add_advised(Advisor& advisor, const py::object& prompt_token_ids, int64_t max_tokens, int32_t request_class,
                 int64_t priority, double arrival_time, std::optional<double> ttft_target,
                 std::optional<double> itl_target, std::optional<double> tpot_target, const std::string& cache_salt,
                 const std::string& tenant) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const TokenIds prompt(prompt_token_ids);
  RequestSpec spec;
  spec.prompt = prompt.view();
  spec.max_tokens = max_tokens;
  spec.request_class = request_class;
  spec.priority = priority;
  spec.arrival_time = arrival_time;
  spec.targets = {ttft_target.value_or(kNever), itl_target.value_or(kNever), tpot_target.value_or(kNever)};
  spec.cache_salt = cache_salt;
  spec.tenant = tenant;
  return advisor.add_request(spec);
}

bool accepts(Advisor& advisor, const py::object& prompt_token_ids, int32_t num_cached, int32_t request_class,
             const std::string& tenant) {
  const TokenIds prompt(prompt_token_ids);
  RequestSpec spec;
  spec.prompt = prompt.view();
  spec.request_class = request_class;
  spec.tenant = tenant;
  return advisor.accepts(spec, num_cached);
}

py::tuple compose(Advisor& advisor, double now, const Int32Array& running, const Int32Array& num_computed,
                  int32_t num_free_blocks) {
  return tuple_of(advisor.compose(now, view_of(running), view_of(num_computed), num_free_blocks));
}

py::object compose_known(Advisor& advisor, double now, int32_t num_running, int32_t num_free_blocks) {
  const Advice* advice = advisor.compose_known(now, num_running, num_free_blocks);
  if (advice == nullptr) return py::none();
  return tuple_of(*advice);
}

py::dict advisor_stats(const Advisor& advisor) {
  const AdvisorCounters& counters = advisor.counters();
  return py::dict("num_running"_a = advisor.num_running(), "num_waiting"_a = advisor.num_waiting(),
                  "num_steps"_a = counters.num_steps, "num_preempted"_a = counters.num_preempted,
                  "class_seconds"_a = counters.class_seconds, "offline_only_seconds"_a = counters.offline_only_seconds,
                  "predicted_ttft_seconds"_a = advisor.predicted_ttft(),
                  "step_time_error_ratio"_a = advisor.latency().mean_relative_error());
}

}  // namespace

void bind_advisor(py::module_& module) {
  py::class_<Advisor>(module, "Advisor")
      .def(py::init([](const SchedulerConfig& config, const std::optional<Estimates>& estimates) {
             return std::make_unique<Advisor>(config, estimates.value_or(Estimates()));
           }),
           "config"_a, "estimates"_a = py::none())
      .def("add_request", &add_advised, "prompt_token_ids"_a, py::kw_only(), "max_tokens"_a, "request_class"_a = 0,
           "priority"_a = 0, "arrival_time"_a = 0.0, "ttft_target"_a = py::none(), "itl_target"_a = py::none(),
           "tpot_target"_a = py::none(), "cache_salt"_a = "", "tenant"_a = "")
      .def("accepts", &accepts, "prompt_token_ids"_a, "num_cached"_a, "request_class"_a = 0, "tenant"_a = "")
      .def("retry_seconds", &Advisor::retry_seconds)
      .def("set_cached", &Advisor::set_cached, "slot"_a, "num_tokens"_a)
      .def("remove", &Advisor::remove, "slot"_a, "is_complete"_a)
      .def("compose", &compose, "now"_a, "running"_a, "num_computed"_a, "num_free_blocks"_a)
      .def("compose_known", &compose_known, "now"_a, "num_running"_a, "num_free_blocks"_a)
      .def(
          "note_scheduled",
          [](Advisor& self, double now, const Int32Array& slots, const Int32Array& num_tokens,
             const Int32Array& num_computed) {
            self.note_scheduled(now, view_of(slots), view_of(num_tokens), view_of(num_computed));
          },
          "now"_a, "slots"_a, "num_tokens"_a, "num_computed"_a)
      .def(
          "commit",
          [](Advisor& self, double now, const Int32Array& slots, const Int32Array& num_sampled) {
            self.commit(now, view_of(slots), view_of(num_sampled));
          },
          "now"_a, "slots"_a, "num_sampled"_a)
      .def(
          "note_advised",
          [](Advisor& self, double now, const Int32Array& admitted, const Int32Array& num_found) {
            self.note_advised(now, view_of(admitted), view_of(num_found));
          },
          "now"_a, "admitted"_a, "num_found"_a)
      .def(
          "note_preempted", [](Advisor& self, const Int32Array& slots) { self.note_preempted(view_of(slots)); },
          "slots"_a)
      .def("commit_expected", &Advisor::commit_expected, "now"_a, "num_outputs"_a)
      .def("running",
           [](const Advisor& self) {
             py::dict found;
             for (const auto& [slot, num_computed] : self.running()) found[py::int_(slot)] = num_computed;
             return found;
           })
      .def("stats", &advisor_stats)
      .def("check_invariants", &Advisor::check_invariants);
}

}  // namespace hocket
