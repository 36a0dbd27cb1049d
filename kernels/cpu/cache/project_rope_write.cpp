#include "cache/project_rope_write.h"

#include "cache/paged.h"
#include "cache/rope_head.h"
#include "kernels.h"
#include "norm_row.h"
#include "simd.h"
#include "threads/parallel.h"
#include "threads/thread_pool.h"
#include "with_type.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

// `normed`: room for one head, where there is a norm.
template <class T>
void write_token(const ProjectRopeWriteArgs& args, const PagedLayer<T>& layer, int64_t token, float* normed) {
  const int64_t head_dim = args.pool.head_dim, half = args.rotary_dim / 2;
  const int64_t position = args.positions[token], row = args.token_row[token];
  const float* k = static_cast<const float*>(args.k) + token * args.k_stride;
  const float* v = static_cast<const float*>(args.v) + token * args.v_stride;
  const float* cos = args.cos_sin + position * args.rotary_dim;
  T* k_to = layer.vector(row, kKeys, position);

  copy_row(v, layer.vector(row, kValues, position), args.pool.num_kv_heads * head_dim);
  for (int64_t h = 0; h < args.pool.num_kv_heads; ++h, k += head_dim, k_to += head_dim) {
    const float* head = k;
    if (args.k_norm != nullptr) {
      norm_row(k, static_cast<const float*>(args.k_norm), head_dim, args.norm_eps, normed);
      head = normed;
    }
    rotate_head(head, cos, cos + half, half, head_dim, k_to);
  }
}

template <class T>
Status run(const ProjectRopeWriteArgs& args) {
  const PagedLayer<T> layer(args.pool, args.layer);
  const int64_t head_dim = args.pool.head_dim;
  parallel_ranges(args.num_tokens, 6 * args.pool.num_kv_heads * head_dim, [&](int64_t begin, int64_t end) {
    float* normed = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(head_dim) * sizeof(float)));
    for (int64_t token = begin; token < end; ++token) write_token<T>(args, layer, token, normed);
  });
  return Status::kOk;
}

}  // namespace

Status project_rope_write(const ProjectRopeWriteArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  return with_type(args.pool.dtype, [&](auto zero) { return run<decltype(zero)>(args); });
}

}  // namespace hocket::cpu::HOCKET_ISA
