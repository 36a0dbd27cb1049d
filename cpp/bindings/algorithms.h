// Registers schedcore._core.algorithms: the core's algorithms one by one, for their tests, their benchmark, calibration
// and planning. The scheduler uses them from C++; nothing here is on the step path. schedcore/_core_algorithms.pyi is
// the contract.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <span>
#include <stdexcept>

namespace hocket {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

template <typename T>
std::span<const T> as_span(const Array<T>& array) {
  if (array.ndim() != 1) throw std::invalid_argument("expected an array of one dimension");
  return {array.data(), static_cast<size_t>(array.size())};
}

template <typename Range>
auto as_array(const Range& values) {
  using T = std::remove_cvref_t<decltype(*values.data())>;
  return Array<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

void bind_algorithms(pybind11::module_& core);

// One group each, called by bind_algorithms().
void bind_knapsack(pybind11::module_& m);
void bind_latency(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_offline(pybind11::module_& m);

}  // namespace hocket
