#include "algorithms.h"
#include "base/check.h"
#include "bindings.h"
#include "fleet/routing_binding.h"
#include "simulation_binding.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ scheduling core. See _core.pyi.";
  pybind11::register_exception<hocket::CoreError>(module, "CoreError", PyExc_RuntimeError);
  hocket::bind_enums(module);
  hocket::bind_config(module);
  hocket::bind_plan(module);
  hocket::bind_scheduler(module);
  hocket::bind_advisor(module);
  hocket::bind_algorithms(module);
  hocket::bind_routing(module);
  hocket::bind_simulation(module);
  hocket::bind_system(module);
}
