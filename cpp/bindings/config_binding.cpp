#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings.h"
#include "estimates/estimates.h"
#include "policies/policy.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

SchedulerConfig make_config(const py::kwargs& fields) {
  SchedulerConfig config;
  const py::object object = py::cast(&config, py::return_value_policy::reference);
  for (const auto& [name, value] : fields) {
    if (!py::hasattr(object, name)) {
      throw py::type_error("SchedulerConfig has no field '" + std::string(py::str(name)) + "'");
    }
    py::setattr(object, name, value);
  }
  config.validate();
  require_policy(config.policy);
  return config;
}

}  // namespace

#define HOCKET_FIELD(name) def_readwrite(#name, &SchedulerConfig::name)

void bind_config(py::module_& module) {
  py::class_<SchedulerConfig>(module, "SchedulerConfig")
      .def(py::init(&make_config))
      .HOCKET_FIELD(num_units)
      .HOCKET_FIELD(num_layers)
      .HOCKET_FIELD(layers_per_unit)
      .HOCKET_FIELD(block_size)
      .HOCKET_FIELD(hidden_units_per_group)
      .HOCKET_FIELD(int8_units_per_group)
      .HOCKET_FIELD(num_host_units)
      .HOCKET_FIELD(num_host_blocks)
      .HOCKET_FIELD(num_copy_blocks)
      .HOCKET_FIELD(enable_disk)
      .HOCKET_FIELD(cache_fingerprint)
      .HOCKET_FIELD(max_num_sessions)
      .HOCKET_FIELD(max_num_seqs)
      .HOCKET_FIELD(max_num_batched_tokens)
      .HOCKET_FIELD(max_model_len)
      .HOCKET_FIELD(max_num_waiting)
      .HOCKET_FIELD(policy)
      .HOCKET_FIELD(enable_prefix_caching)
      .HOCKET_FIELD(enable_chunked_prefill)
      .HOCKET_FIELD(enable_mixed_steps)
      .HOCKET_FIELD(token_composition)
      .HOCKET_FIELD(restore)
      .HOCKET_FIELD(save_sessions_only)
      .HOCKET_FIELD(overlap_restores)
      .HOCKET_FIELD(preemption)
      .HOCKET_FIELD(cache_kind)
      .HOCKET_FIELD(enable_partial_caching)
      .HOCKET_FIELD(refine_latency)
      .HOCKET_FIELD(max_guessed_tokens)
      .HOCKET_FIELD(past_target_decay)
      .HOCKET_FIELD(max_wait_ms)
      .HOCKET_FIELD(max_offline_wait_ms)
      .HOCKET_FIELD(starving_turn_ms)
      .HOCKET_FIELD(max_ttft_ms)
      .HOCKET_FIELD(max_decode_step_ms)
      .HOCKET_FIELD(deadline_quantile)
      .HOCKET_FIELD(length_quantile)
      .HOCKET_FIELD(max_offline_step_ms)
      .HOCKET_FIELD(enable_residents)
      .HOCKET_FIELD(enable_deadlines)
      .HOCKET_FIELD(enable_plan_search)
      .HOCKET_FIELD(enable_task_aware_eviction)
      .HOCKET_FIELD(enable_reserve)
      .HOCKET_FIELD(reserve_deviations)
      .def_property_readonly("num_groups", &SchedulerConfig::num_groups)
      .def_property_readonly("units_per_block", &SchedulerConfig::units_per_block)
      .def_property_readonly("max_blocks_per_seq", &SchedulerConfig::max_blocks_per_seq);

  py::class_<Estimates>(module, "Estimates")
      .def(
          py::init([](const std::optional<LatencyModel>& latency, const std::optional<StepCosts>& costs,
                      double host_bytes_per_second, double unit_bytes, double latency_deviation,
                      double disk_bytes_per_second, double latency_margin) {
            if (!(latency_margin >= 1)) throw py::value_error("latency_margin must be at least 1");
            if (!(latency_deviation > 0)) throw py::value_error("latency_deviation must be positive");
            if (!(host_bytes_per_second >= 0) || !(disk_bytes_per_second >= 0) || !(unit_bytes >= 0)) {
              throw py::value_error("host_bytes_per_second, disk_bytes_per_second and unit_bytes must not be negative");
            }
            return Estimates{latency.value_or(LatencyModel()),
                             latency_deviation,
                             StepMargin(latency_margin),
                             costs.value_or(StepCosts()),
                             host_bytes_per_second,
                             disk_bytes_per_second,
                             unit_bytes};
          }),
          py::kw_only(), "latency"_a = py::none(), "costs"_a = py::none(), "host_bytes_per_second"_a = 0.0,
          "unit_bytes"_a = 0.0, "latency_deviation"_a = Estimates().latency_deviation, "disk_bytes_per_second"_a = 0.0,
          "latency_margin"_a = StepMargin::kLeast)
      .def_property_readonly("latency", [](const Estimates& self) { return self.latency; })
      .def("itl_seconds", py::overload_cast<int32_t>(&Estimates::itl_seconds, py::const_), "max_num_seqs"_a);
}

#undef HOCKET_FIELD

}  // namespace hocket
