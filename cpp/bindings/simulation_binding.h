// Registers schedcore._core.simulation: the scheduler under a virtual clock. schedcore/_core_simulation.pyi is the
// contract. REQUIRES: bind_scheduler() and bind_algorithms() were called on the module, for the types they share.
#pragma once

#include <pybind11/pybind11.h>

namespace hocket {

void bind_simulation(pybind11::module_& core);

}  // namespace hocket
