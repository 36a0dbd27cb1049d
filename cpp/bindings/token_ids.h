// Token ids from Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace hocket {

using Int32Array = pybind11::array_t<int32_t, pybind11::array::c_style>;

// Token ids as the core wants them. A value that is no int32 becomes -1, which the core refuses as invalid; something
// that is no integer raises TypeError.
class TokenIds {
 public:
  explicit TokenIds(const pybind11::object& source) {
    if (pybind11::isinstance<Int32Array>(source)) {
      array_ = pybind11::reinterpret_borrow<Int32Array>(source);
      if (array_.ndim() != 1) throw pybind11::value_error("token ids must have one dimension");
      view_ = {array_.data(), static_cast<size_t>(array_.size())};
    } else {
      // A tuple of our own: __index__ of an item may do anything to a list, such as make it shorter.
      copy(pybind11::reinterpret_steal<pybind11::object>(PySequence_Tuple(source.ptr())));
      view_ = copy_;
    }
  }

  std::span<const int32_t> view() const { return view_; }

 private:
  void copy(const pybind11::object& tuple) {
    if (!tuple) throw pybind11::error_already_set();
    const Py_ssize_t size = PyTuple_GET_SIZE(tuple.ptr());
    copy_.reserve(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      const auto index =
          pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(PyTuple_GET_ITEM(tuple.ptr(), i)));
      if (!index) throw pybind11::error_already_set();
      int overflow = 0;
      const int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
      copy_.push_back(std::in_range<int32_t>(value) && !overflow ? static_cast<int32_t>(value) : -1);
    }
  }

  Int32Array array_;
  std::vector<int32_t> copy_;
  std::span<const int32_t> view_;
};

}  // namespace hocket
