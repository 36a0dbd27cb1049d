// The kernels of this folder one after the other; activations lie in memory that the caller's thread keeps.
#include "decoder_step.h"

#include <time.h>

#include "kernels.h"
#include "landing.h"
#include "linear/int8_rows.h"
#include "linear/linear_product.h"
#include "norm_row.h"
#include "simd.h"
#include "threads/parallel.h"
#include "threads/thread_pool.h"
#include "with_type.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

class StageTimer {
 public:
  explicit StageTimer(int64_t* stage_ns) : stage_ns_(stage_ns), last_(stage_ns == nullptr ? 0 : now_ns()) {}

  // The time since the last call was spent on this stage.
  void add(DecoderStage stage) {
    if (stage_ns_ == nullptr) return;
    const int64_t now = now_ns();
    stage_ns_[static_cast<int>(stage)] += now - last_;
    last_ = now;
  }

 private:
  int64_t* stage_ns_;
  int64_t last_;
};

// out[i] = table[indices[i]], rows of n elements.
template <class T>
void take_rows(const T* table, const int32_t* indices, int64_t num_rows, int64_t n, float* out) {
  for (int64_t row = 0; row < num_rows; ++row, out += n) {
    const T* from = table + indices[row] * n;
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) store(out + i, load(from + i));
    if (i < n) store_first(out + i, load_first(from + i, n - i), n - i);
  }
}

// What a product reads: rows far enough apart for its vectors, and not a power of two.
constexpr int64_t row_stride(int64_t n) { return round_up(n, 32) + 32; }

class DecoderStep {
 public:
  explicit DecoderStep(const DecoderStepArgs& args)
      : args_(args),
        model_(*args.model),
        hidden_size_(model_.hidden_size),
        inner_size_(model_.layers[0].down.in_features),
        query_size_(model_.num_heads * args.pool.head_dim),
        kv_size_(args.pool.num_kv_heads * args.pool.head_dim),
        timer_(args.stage_ns) {}

  Status run() {
    if (!is_packed_for_us()) return Status::kWrongPacking;
    allocate();
    embed();
    timer_.add(DecoderStage::kEmbedding);
    int64_t num_tokens = args_.num_tokens;
    for (int64_t i = 0; i < model_.num_layers; ++i) {
      const DecoderLayer& layer = model_.layers[i];
      attend(layer, i);
      if (i + 1 == model_.num_layers) num_tokens = keep_sampled();
      add_to_residual(layer.output, {mixed_, query_size_, num_tokens, DType::kFloat32});
      timer_.add(DecoderStage::kOutput);
      feed_forward(layer, num_tokens);
      timer_.add(DecoderStage::kMlp);
    }
    norm(model_.final_norm, num_tokens, DType::kFloat32, args_.hidden, hidden_size_);
    if (args_.logits != nullptr) {
      product(model_.head, {args_.hidden, hidden_size_, num_tokens, DType::kFloat32},
              {args_.logits, model_.head.out_features, DType::kFloat32, false});
    }
    timer_.add(DecoderStage::kHead);
    return status_;
  }

 private:
  bool is_packed_for_us() const { return model_.head.panel_width == kPanel; }

  void allocate() {
    const int64_t floats =
        row_stride(hidden_size_) + row_stride(inner_size_) + hidden_size_ + 2 * (query_size_ + kv_size_);
    const size_t bytes = static_cast<size_t>(args_.num_tokens * floats) * sizeof(float);
    float* p = static_cast<float*>(scratch(Scratch::kStep, bytes));
    const auto take = [&](int64_t size) {
      float* taken = p;
      p += args_.num_tokens * size;
      return taken;
    };
    input_ = take(row_stride(hidden_size_));
    inner_ = take(row_stride(inner_size_));
    residual_ = take(hidden_size_);
    qkv_ = take(query_size_ + 2 * kv_size_);
    mixed_ = take(query_size_);
  }

  void embed() {
    keep(with_type(model_.embedding_dtype, [&](auto zero) {
      const auto* table = static_cast<const decltype(zero)*>(model_.embedding);
      take_rows(table, args_.token_ids, args_.num_tokens, hidden_size_, residual_);
      return Status::kOk;
    }));
  }

  // residual_ -> mixed_, K and V to the pool.
  void attend(const DecoderLayer& layer, int64_t index) {
    const int64_t qkv_size = query_size_ + 2 * kv_size_;
    product(layer.qkv, normed(layer.attention_norm, args_.num_tokens, layer.qkv),
            {qkv_, qkv_size, DType::kFloat32, false});
    float* k = qkv_ + query_size_;
    timer_.add(DecoderStage::kQkv);
    keep(rope_kv_write({qkv_, k, k + kv_size_, model_.cos_sin, args_.positions, args_.token_row, args_.pool, index,
                        args_.num_tokens, model_.num_heads, model_.rotary_dim, qkv_size, qkv_size, qkv_size,
                        DType::kFloat32, layer.q_norm, layer.k_norm, model_.norm_eps}));
    wait_until_landed(args_.num_landed, index / args_.pool.layers_per_unit);
    keep(paged_attention({mixed_, qkv_, args_.rows, args_.query_start, args_.seq_lens, args_.pool, index,
                          args_.num_tokens, args_.num_seqs, model_.num_heads, qkv_size, layer.sliding_window, 0, 0,
                          model_.attention_scale, DType::kFloat32, nullptr}));
    timer_.add(DecoderStage::kAttention);
  }

  // Nothing else is read of the other tokens. Indices ascend, so rows move in place. Returns how many are left.
  int64_t keep_sampled() {
    if (args_.num_samples < args_.num_tokens) {
      move_rows(mixed_, query_size_);
      move_rows(residual_, hidden_size_);
    }
    return args_.num_samples;
  }

  void move_rows(float* data, int64_t n) const {
    for (int64_t i = 0; i < args_.num_samples; ++i) {
      __builtin_memmove(data + i * n, data + args_.sample_tokens[i] * n, static_cast<size_t>(n) * sizeof(float));
    }
  }

  void feed_forward(const DecoderLayer& layer, int64_t num_tokens) {
    const int64_t stride = row_stride(inner_size_);
    const DType inner_dtype = linear_input_dtype(layer.down.dtype);
    product(layer.gate_up, normed(layer.mlp_norm, num_tokens, layer.gate_up), {inner_, stride, inner_dtype, false});
    add_to_residual(layer.down, {inner_, stride, num_tokens, inner_dtype});
  }

  // The norm of residual_ as the product with `next` reads it.
  ProductInput normed(const float* weight, int64_t num_tokens, const LinearWeight& next) {
    if (is_in_blocks(next.dtype)) return normed_int8(weight, num_tokens);
    const int64_t stride = row_stride(hidden_size_);
    const DType dtype = linear_input_dtype(next.dtype);
    norm(weight, num_tokens, dtype, input_, stride);
    return {input_, stride, num_tokens, dtype};
  }

  ProductInput normed_int8(const float* weight, int64_t num_tokens) {
    const int64_t stride = Int8RowLayout(hidden_size_).stride;
    auto* rows = static_cast<int8_t*>(scratch(Scratch::kActivations, static_cast<size_t>(num_tokens * stride)));
    parallel_ranges(num_tokens, 4 * hidden_size_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = static_cast<float*>(input_) + i * row_stride(hidden_size_);
        norm_row(residual_ + i * hidden_size_, weight, hidden_size_, model_.norm_eps, row);
        quantize_row(row, hidden_size_, rows + i * stride);
      }
    });
    return {rows, stride, num_tokens, DType::kInt8Blocks};
  }

  void norm(const float* weight, int64_t num_tokens, DType dtype, void* out, int64_t stride) {
    parallel_ranges(num_tokens, 2 * hidden_size_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* x = residual_ + i * hidden_size_;
        if (dtype == DType::kBFloat16) {
          BFloat16* to = static_cast<BFloat16*>(out) + i * stride;
          norm_row(x, weight, hidden_size_, model_.norm_eps, to);
          to[hidden_size_] = {};  // read where hidden_size is odd
        } else {
          norm_row(x, weight, hidden_size_, model_.norm_eps, static_cast<float*>(out) + i * stride);
        }
      }
    });
  }

  void add_to_residual(const LinearWeight& weight, const ProductInput& x) {
    product(weight, x, {residual_, hidden_size_, DType::kFloat32, true});
  }

  void product(const LinearWeight& weight, const ProductInput& x, const ProductOutput& out) {
    linear_product({weight.packed, weight.bias, weight.in_features, weight.out_features, weight.dtype, weight.is_gated},
                   x, out);
  }

  void keep(Status status) {
    if (status != Status::kOk) status_ = status;
  }

  const DecoderStepArgs& args_;
  const DecoderModel& model_;
  int64_t hidden_size_;
  int64_t inner_size_;
  int64_t query_size_;
  int64_t kv_size_;
  StageTimer timer_;
  Status status_ = Status::kOk;

  // [num_tokens][...]
  void* input_ = nullptr;      // row_stride(hidden_size): the norm of the residual
  void* inner_ = nullptr;      // row_stride(inner_size)
  float* residual_ = nullptr;  // hidden_size
  float* qkv_ = nullptr;       // query_size + 2 kv_size
  float* mixed_ = nullptr;     // query_size
};

}  // namespace

Status decoder_step(const DecoderStepArgs& args) { return DecoderStep(args).run(); }

}  // namespace hocket::cpu::HOCKET_ISA
