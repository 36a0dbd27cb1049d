// What the files of the Python binding share.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "paged_pool.h"
#include "status.h"

namespace hocket {

using Pointer = uintptr_t;  // Tensor.data_ptr()

inline void* to_pointer(Pointer p) { return reinterpret_cast<void*>(p); }
template <class T>
const T* to_const(Pointer p) {
  return reinterpret_cast<const T*>(p);
}

// Throws std::runtime_error for every status but kOk.
void check(Status status);

// decoder_step and draw_tokens.
void bind_decoder(pybind11::module_& module);

}  // namespace hocket
