// Registers schedcore._core.algorithms. Called once by the module's init function.
#pragma once

#include <pybind11/pybind11.h>

namespace hocket {

void bind_algorithms(pybind11::module_& core);

}  // namespace hocket
