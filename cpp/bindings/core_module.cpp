#include <pybind11/native_enum.h>

#include "algorithms.h"
#include "bindings.h"
#include "check.h"
#include "simulation_binding.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ scheduling core. See _core.pyi.";
  pybind11::register_exception<hocket::CoreError>(module, "CoreError", PyExc_RuntimeError);
  pybind11::native_enum<hocket::AddStatus>(module, "AddStatus", "enum.Enum")
      .value("OK", hocket::AddStatus::kOk)
      .value("QUEUE_FULL", hocket::AddStatus::kQueueFull)
      .value("TOO_LONG", hocket::AddStatus::kTooLong)
      .value("DUPLICATE_ID", hocket::AddStatus::kDuplicateId)
      .value("INVALID", hocket::AddStatus::kInvalid)
      .finalize();
  hocket::bind_config(module);
  hocket::bind_plan(module);
  hocket::bind_scheduler(module);
  hocket::bind_algorithms(module);
  hocket::bind_simulation(module);
}
