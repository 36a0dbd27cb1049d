#include <pybind11/stl.h>

#include <string>

#include "algorithms.h"
#include "partial_cache_solver.h"

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
      [](const StepCosts& costs, const Array<int32_t>& lengths, double memory_bytes, double max_seconds) {
        const PartialCacheChoice choice = solve_partial_cache(costs, {as_span(lengths), memory_bytes, max_seconds});
        return py::make_tuple(choice.batch_size, choice.uncached_ratio, choice.seconds);
      },
      py::arg("costs"), py::arg("lengths"), py::arg("memory_bytes"), py::arg("max_seconds"));
}

}  // namespace

void bind_memory(py::module_& m) { bind_partial_cache(m); }

}  // namespace hocket
