#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <span>
#include <string>

#include "algorithms.h"
#include "fleet/routing_binding.h"
#include "simulation/fleet/fleet_loop.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

// Keeps the arrays that the loop looks at.
class FleetObject {
 public:
  FleetObject(const py::dict& trace, const FleetOptions& options)
      : trace_(py::dict(trace.attr("copy")())), loop_(views(), options) {}

  bool run(double until) {
    const py::gil_scoped_release release;
    return loop_.run(until);
  }

  const FleetLoop& loop() const { return loop_; }

 private:
  template <typename T>
  std::span<const T> get(const char* name) const {
    const py::object column = trace_[name];
    if (!py::isinstance<Array<T>>(column)) throw py::type_error(std::string(name) + " has the wrong type or layout");
    return as_span(py::reinterpret_borrow<Array<T>>(column));
  }

  FleetTrace views() const {
    return {get<double>("arrival_s"), get<int32_t>("num_tokens"),   get<int32_t>("num_outputs"),
            get<int64_t>("session"),  get<uint8_t>("is_follow_up"), get<int64_t>("key_offsets"),
            get<uint64_t>("keys")};
  }

  py::dict trace_;
  FleetLoop loop_;
};

FleetOptions fleet_options(const NodeTraits& traits, const RouteOptions& route, const py::dict& values) {
  FleetOptions options;
  options.traits = traits;
  options.route = route;
  options.node.latency = traits.latency;
  options.node.max_batched_tokens = traits.max_batched_tokens;
  options.node.device_tokens = traits.device_tokens;
  options.node.kept_tokens = traits.kept_tokens;
  if (traits.restore_bytes_per_second > 0) {
    options.node.restore_seconds_per_token = traits.bytes_per_token / traits.restore_bytes_per_second;
  }
  for (const auto& [key, value] : values) {
    const auto name = key.cast<std::string>();
    const auto take = [&](const char* field, auto& target) {
      if (name != field) return false;
      target = value.cast<std::remove_reference_t<decltype(target)>>();
      return true;
    };
    const bool is_known =
        take("num_nodes", options.num_nodes) || take("nodes_per_machine", options.nodes_per_machine) ||
        take("num_gateways", options.num_gateways) || take("num_copies", options.num_copies) ||
        take("num_common_keys", options.num_common_keys) || take("spread_s", options.spread_s) ||
        take("report_interval_s", options.report_interval_s) || take("report_delay_s", options.report_delay_s) ||
        take("pull_bytes_per_second", options.pull_bytes_per_second) ||
        take("host_bytes_per_second", options.host_bytes_per_second) || take("lead_s", options.lead_s) ||
        take("missed_ratio", options.missed_ratio) || take("ttft_target_s", options.ttft_target_s) ||
        take("expected_outputs", options.expected_outputs) || take("seed", options.seed) ||
        take("max_running", options.node.max_running) || take("tokens_per_key", options.node.tokens_per_key) ||
        take("max_sessions", options.limits.max_sessions) || take("max_prefixes", options.limits.max_prefixes);
    if (!is_known) throw py::type_error("a fleet has no option " + name);
  }
  options.limits.pull_bytes_per_second = options.pull_bytes_per_second;
  return options;
}

py::dict fleet_records(const FleetObject& object) {
  const FleetRecords& r = object.loop().records();
  return py::dict("arrival_s"_a = as_array(r.arrival_s), "ttft_s"_a = as_array(r.ttft_s), "e2e_s"_a = as_array(r.e2e_s),
                  "num_tokens"_a = as_array(r.num_tokens), "num_outputs"_a = as_array(r.num_outputs),
                  "num_cached"_a = as_array(r.num_cached), "node"_a = as_array(r.node));
}

py::dict fleet_totals(const FleetObject& object) {
  const FleetTotals t = object.loop().totals();
  return py::dict("pulled_bytes"_a = t.pulled_bytes, "num_pulls"_a = t.num_pulls, "num_moves"_a = t.num_moves,
                  "busy_s"_a = as_array(t.busy_s), "computed_tokens"_a = as_array(t.computed_tokens));
}

}  // namespace

void bind_fleet_simulation(py::module_& routing) {
  py::class_<FleetObject>(routing, "FleetLoop")
      .def(py::init([](const py::dict& trace, const NodeTraits& traits, const RouteOptions& route,
                       const py::kwargs& options) {
             return std::make_unique<FleetObject>(trace, fleet_options(traits, route, options));
           }),
           "trace"_a, "traits"_a, "route"_a)
      .def("run", &FleetObject::run, "until"_a)
      .def("__len__", [](const FleetObject& self) { return self.loop().size(); })
      .def_property_readonly("now", [](const FleetObject& self) { return self.loop().now(); })
      .def_property_readonly("num_ended", [](const FleetObject& self) { return self.loop().num_ended(); })
      .def("records", &fleet_records)
      .def("totals", &fleet_totals);
}

}  // namespace hocket
