// What the files of the Python binding share.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/paged_pool.h"
#include "base/status.h"

#ifdef HOCKET_HAS_CUDA
#define HOCKET_LAUNCH(op, args, stream) \
  check((stream) == kCpu ? op##_cpu(args) : op##_cuda(args, reinterpret_cast<void*>(stream)))
#define HOCKET_LAUNCH_CUDA(op, args, stream) check(op##_cuda(args, reinterpret_cast<void*>(stream)))
#else
#define HOCKET_LAUNCH(op, args, stream) check((stream) == kCpu ? op##_cpu(args) : Status::kDeviceError)
#define HOCKET_LAUNCH_CUDA(op, args, stream) check(Status::kDeviceError)
#endif

namespace hocket {

// A launcher runs on the CPU where `stream` is kCpu, else on that CUDA stream.
constexpr int64_t kCpu = -1;

using Pointer = uintptr_t;  // Tensor.data_ptr()

inline void* to_pointer(Pointer p) { return reinterpret_cast<void*>(p); }
template <class T>
const T* to_const(Pointer p) {
  return reinterpret_cast<const T*>(p);
}

// Throws std::runtime_error for every status but kOk.
void check(Status status);

// What moves cached vectors, and landing. After PagedPool.
void bind_cache(pybind11::module_& module);

// decoder_step, allow_tokens, allowed_argmax and draw_tokens.
void bind_decoder(pybind11::module_& module);

}  // namespace hocket
