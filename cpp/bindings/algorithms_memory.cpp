#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "algorithms.h"
#include "estimates/memory_forecast.h"
#include "solvers/overlap_planner.h"
#include "solvers/partial_cache_solver.h"

namespace py = pybind11;

namespace hocket {
namespace {

StepCostForm step_cost_form(const std::string& name) {
  if (name == "flops") return StepCostForm::kFlops;
  if (name == "roofline") return StepCostForm::kRoofline;
  throw std::invalid_argument("form must be flops or roofline, not " + name);
}

StepCosts make_step_costs(const std::string& form, const py::kwargs& fields) {
  StepCosts costs{.form = step_cost_form(form)};
  const py::object object = py::cast(&costs, py::return_value_policy::reference);
  for (const auto& [name, value] : fields) {
    py::setattr(object, py::reinterpret_borrow<py::str>(name), py::reinterpret_borrow<py::object>(value));
  }
  require(costs.flops_per_token > 0, "flops_per_token must be positive");
  require(costs.flops_per_pair > 0, "flops_per_pair must be positive");
  require(costs.flops_per_second > 0, "flops_per_second must be positive");
  require(costs.bytes_per_second > 0, "bytes_per_second must be positive");
  require(costs.kv_bytes_per_token > 0, "kv_bytes_per_token must be positive");
  require(costs.workspace_bytes_per_token >= 0, "workspace_bytes_per_token must not be negative");
  return costs;
}

void bind_partial_cache(py::module_& m) {
  py::class_<StepCosts>(m, "StepCosts")
      .def(py::init(&make_step_costs), py::arg("form"))
      .def_readwrite("flops_per_token", &StepCosts::flops_per_token)
      .def_readwrite("flops_per_pair", &StepCosts::flops_per_pair)
      .def_readwrite("flops_per_logit", &StepCosts::flops_per_logit)
      .def_readwrite("flops_per_second", &StepCosts::flops_per_second)
      .def_readwrite("weight_bytes", &StepCosts::weight_bytes)
      .def_readwrite("head_bytes", &StepCosts::head_bytes)
      .def_readwrite("kv_bytes_per_token", &StepCosts::kv_bytes_per_token)
      .def_readwrite("workspace_bytes_per_token", &StepCosts::workspace_bytes_per_token)
      .def_readwrite("bytes_per_second", &StepCosts::bytes_per_second);
  m.def(
      "solve_partial_cache",
      [](const StepCosts& costs, const Array<int32_t>& lengths, double memory_bytes, double max_seconds,
         const std::optional<Array<double>>& slack_seconds, double max_ratio) {
        PartialCacheProblem problem{as_span(lengths), memory_bytes, {}, max_seconds, max_ratio};
        if (slack_seconds) problem.slack_seconds = as_span(*slack_seconds);
        if (slack_seconds && problem.slack_seconds.size() != problem.lengths.size()) {
          throw std::invalid_argument("slack_seconds must have one entry per length");
        }
        const PartialCacheChoice choice = solve_partial_cache(costs, problem);
        return py::make_tuple(choice.batch_size, choice.uncached_ratio, choice.seconds);
      },
      py::arg("costs"), py::arg("lengths"), py::arg("memory_bytes"), py::arg("max_seconds"),
      py::arg("slack_seconds") = py::none(), py::arg("max_ratio") = 1.0);
}

void bind_forecast(py::module_& m) {
  py::class_<MemoryForecast>(m, "MemoryForecast")
      .def(py::init([](double window_seconds, int32_t num_buckets) {
             require(window_seconds > 0, "window_seconds must be positive");
             require(num_buckets >= 2, "num_buckets must be at least 2");
             return MemoryForecast({window_seconds, num_buckets});
           }),
           py::kw_only(), py::arg("window_seconds") = MemoryForecastOptions{}.window_seconds,
           py::arg("num_buckets") = MemoryForecastOptions{}.num_buckets)
      .def("update", &MemoryForecast::update, py::arg("now"), py::arg("units"))
      .def("mean", &MemoryForecast::mean)
      .def("deviation", &MemoryForecast::deviation)
      .def(
          "reserve",
          [](const MemoryForecast& forecast, double num_deviations) {
            require(num_deviations >= 0, "num_deviations must not be negative");
            return forecast.reserve(num_deviations);
          },
          py::arg("num_deviations"));
}

void bind_overlap(py::module_& m) {
  m.def(
      "paper_overlap",
      [](double recompute_base_seconds, double recompute_layer_seconds, double swap_layer_seconds) {
        const PaperOverlap best = paper_overlap(recompute_base_seconds, recompute_layer_seconds, swap_layer_seconds);
        return py::make_tuple(best.recomputed_layers, best.swapped_layers, best.bubble_seconds);
      },
      py::arg("recompute_base_seconds"), py::arg("recompute_layer_seconds"), py::arg("swap_layer_seconds"));
  py::class_<OverlapPlan>(m, "OverlapPlan")
      .def_readonly("recomputed_layers", &OverlapPlan::recomputed_layers)
      .def_readonly("window", &OverlapPlan::window)
      .def_property_readonly("loaded_kind",
                             [](const OverlapPlan& self) { return static_cast<int32_t>(self.loaded_kind); })
      .def_readonly("workspace_layers", &OverlapPlan::workspace_layers)
      .def_readonly("seconds", &OverlapPlan::seconds);
  m.def(
      "plan_overlap",
      [](int32_t num_layers, double compute_seconds, double recompute_seconds, double load_kv_seconds,
         std::optional<double> load_hidden_seconds, double project_seconds) {
        require(num_layers >= 1, "num_layers must be at least 1");
        return plan_overlap(num_layers,
                            {compute_seconds, recompute_seconds, load_kv_seconds, load_hidden_seconds.value_or(0.0),
                             project_seconds, load_hidden_seconds.has_value()});
      },
      py::arg("num_layers"), py::kw_only(), py::arg("compute_seconds"), py::arg("recompute_seconds"),
      py::arg("load_kv_seconds"), py::arg("load_hidden_seconds") = py::none(), py::arg("project_seconds") = 0.0);
}

}  // namespace

void bind_memory(py::module_& m) {
  bind_overlap(m);
  bind_partial_cache(m);
  bind_forecast(m);
}

}  // namespace hocket
