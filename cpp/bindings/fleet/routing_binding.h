// Registers schedcore._core.routing: which node of a fleet serves a request. schedcore/_core_routing.pyi is the
// contract. REQUIRES: bind_enums() and bind_algorithms() were called on the module, for the types they share.
#pragma once

#include <pybind11/pybind11.h>

namespace hocket {

void bind_routing(pybind11::module_& core);

// FleetLoop, called by bind_routing().
void bind_fleet_simulation(pybind11::module_& routing);

}  // namespace hocket
