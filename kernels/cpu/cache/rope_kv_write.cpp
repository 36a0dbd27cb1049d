#include "cache/rope_kv_write.h"

#include <type_traits>

#include "cache/int8_heads.h"
#include "cache/paged.h"
#include "cache/rope_head.h"
#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"
#include "threads/thread_pool.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

// As it is, [d_kv].
template <class T>
void write_vector(const float* x, const PagedLayer<T>& layer, int64_t row, Kind kind, int64_t position,
                  const PagedPool& pool) {
  T* to = layer.vector(row, kind, position);
  if constexpr (std::is_same_v<T, int8_t>) {
    store_heads(x, pool.num_kv_heads, pool.head_dim, to, layer.scales(row, kind, position));
  } else {
    copy_row(x, to, pool.num_kv_heads * pool.head_dim);
  }
}

template <class T>
void write_token(const RopeKvWriteArgs& args, int64_t token) {
  const int64_t head_dim = args.pool.head_dim, num_kv_heads = args.pool.num_kv_heads, half = args.rotary_dim / 2;
  const int64_t position = args.positions[token], row = args.token_row[token];
  float* q = static_cast<float*>(args.q) + token * args.q_stride;
  const float* k = static_cast<const float*>(args.k) + token * args.k_stride;
  const float* v = static_cast<const float*>(args.v) + token * args.v_stride;
  const PagedLayer<T> layer(args.pool, args.layer);
  write_vector(v, layer, row, kValues, position, args.pool);
  if (half == 0) return write_vector(k, layer, row, kKeys, position, args.pool);
  const float* cos = args.cos_sin + position * args.rotary_dim;
  const float* sin = cos + half;
  T* k_to = layer.vector(row, kKeys, position);
  if constexpr (std::is_same_v<T, int8_t>) {
    float* rotated = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(head_dim) * sizeof(float)));
    BFloat16* scales = layer.scales(row, kKeys, position);
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      rotate_head(k + h * head_dim, cos, sin, half, head_dim, rotated);
      scales[h] = store_head(rotated, head_dim, k_to + h * head_dim);
    }
  } else {
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      rotate_head(k + h * head_dim, cos, sin, half, head_dim, k_to + h * head_dim);
    }
  }
  for (int64_t h = 0; h < args.num_heads; ++h) {
    rotate_head(q + h * head_dim, cos, sin, half, head_dim, q + h * head_dim);
  }
}

template <class T>
Status run(const RopeKvWriteArgs& args) {
  const int64_t elements = (args.num_heads + 2 * args.pool.num_kv_heads) * args.pool.head_dim;
  parallel_ranges(args.num_tokens, 2 * elements, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) write_token<T>(args, token);
  });
  return Status::kOk;
}

}  // namespace

Status rope_kv_write(const RopeKvWriteArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  switch (args.pool.dtype) {
    case DType::kFloat32:
      return run<float>(args);
    case DType::kBFloat16:
      return run<BFloat16>(args);
    case DType::kFloat16:
      return run<Float16>(args);
    case DType::kInt8:
      return run<int8_t>(args);
    case DType::kInt8Blocks:
    case DType::kInt4Blocks:
      break;
  }
  return Status::kUnsupportedDType;
}

}  // namespace hocket::cpu::HOCKET_ISA
