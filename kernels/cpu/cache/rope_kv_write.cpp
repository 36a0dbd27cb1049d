#include "cache/rope_kv_write.h"

#include <type_traits>

#include "cache/int8_heads.h"
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

// The heads of one token: normed where there is a norm, and rotated, to where they belong.
template <class T>
class Token {
 public:
  // scratch: room for one head.
  Token(const RopeKvWriteArgs& args, int64_t token, float* scratch)
      : args_(args), scratch_(scratch), cos_(args.cos_sin + args.positions[token] * args.rotary_dim) {}

  void write_q(float* q) const {
    const int64_t size = args_.num_heads * head_dim_;
    for (float* head = q; head < q + size; head += head_dim_) rotate(normed(head, args_.q_norm, head), head);
  }

  // scales: of the heads in int8, else not read.
  void write_k(const float* k, T* to, [[maybe_unused]] BFloat16* scales) const {
    for (int64_t h = 0; h < args_.pool.num_kv_heads; ++h, k += head_dim_, to += head_dim_) {
      const float* head = normed(k, args_.k_norm, scratch_);
      if constexpr (std::is_same_v<T, int8_t>) {
        rotate(head, scratch_);
        scales[h] = store_head(scratch_, head_dim_, to);
      } else {
        rotate(head, to);
      }
    }
  }

 private:
  const float* normed(const float* head, const void* weight, float* to) const {
    if (weight == nullptr) return head;
    norm_row(head, static_cast<const float*>(weight), head_dim_, args_.norm_eps, to);
    return to;
  }

  template <class To>
  void rotate(const float* head, To* to) const {
    rotate_head(head, cos_, cos_ + half_, half_, head_dim_, to);
  }

  const RopeKvWriteArgs& args_;
  float* scratch_;
  const float* cos_;
  int64_t head_dim_ = args_.pool.head_dim, half_ = args_.rotary_dim / 2;
};

template <class T>
void write_token(const RopeKvWriteArgs& args, const PagedLayer<T>& layer, int64_t token, float* scratch) {
  const int64_t position = args.positions[token], row = args.token_row[token];
  const float* k = static_cast<const float*>(args.k) + token * args.k_stride;
  const float* v = static_cast<const float*>(args.v) + token * args.v_stride;
  const bool is_normed = args.q_norm != nullptr, is_rotated = args.rotary_dim > 0;
  write_vector(v, layer, row, kValues, position, args.pool);
  if (!is_normed && !is_rotated) return write_vector(k, layer, row, kKeys, position, args.pool);
  const Token<T> heads(args, token, scratch);
  BFloat16* scales = nullptr;
  if constexpr (std::is_same_v<T, int8_t>) scales = layer.scales(row, kKeys, position);
  heads.write_k(k, layer.vector(row, kKeys, position), scales);
  heads.write_q(static_cast<float*>(args.q) + token * args.q_stride);
}

template <class T>
Status run(const RopeKvWriteArgs& args) {
  const PagedLayer<T> layer(args.pool, args.layer);
  const auto int8_rows = PagedLayer<int8_t>::of_int8_rows(args.pool, args.layer);
  const int64_t elements = (args.num_heads + 2 * args.pool.num_kv_heads) * args.pool.head_dim;
  const size_t head_bytes = static_cast<size_t>(args.pool.head_dim) * sizeof(float);
  parallel_ranges(args.num_tokens, (args.q_norm == nullptr ? 2 : 4) * elements, [&](int64_t begin, int64_t end) {
    float* head = static_cast<float*>(scratch(Scratch::kItem, head_bytes));
    for (int64_t token = begin; token < end; ++token) {
      is_int8_row(args.pool, args.token_row[token]) ? write_token(args, int8_rows, token, head)
                                                    : write_token(args, layer, token, head);
    }
  });
  return Status::kOk;
}

}  // namespace

Status rope_kv_write(const RopeKvWriteArgs& args) {
  if (args.dtype != DType::kFloat32) return Status::kUnsupportedDType;
  if (args.pool.dtype == DType::kInt8) return run<int8_t>(args);
  return with_type(args.pool.dtype, [&](auto zero) { return run<decltype(zero)>(args); });
}

}  // namespace hocket::cpu::HOCKET_ISA
