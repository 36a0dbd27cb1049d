// decoder_step: one step of a whole decoder on CPU, token ids in, logits out: every layer's norm, projections,
// rotation, attention and gated MLP with the kernels of this folder, in one call.
//
// For models of RMSNorm before each half layer, rotated positions and silu(gate) * up. Activations are float32.
// The last layer's output projection and MLP run for the tokens in sample_tokens only.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/paged_pool.h"
#include "base/status.h"

namespace hocket {

// A weight and its bias as linear.h wants them.
struct LinearWeight {
  const void* packed;
  const float* bias;  // [out_features], or null
  int64_t in_features;
  int64_t out_features;
  int64_t panel_width;
  DType dtype;
  bool is_gated;
};

struct DecoderLayer {
  const float* attention_norm;  // [hidden_size]
  LinearWeight qkv;             // to all heads of q, then of k, then of v
  const float* q_norm;          // [head_dim], on each head before rotation; or null
  const float* k_norm;          // likewise
  LinearWeight output;
  int64_t sliding_window;  // 0: none
  const float* mlp_norm;   // [hidden_size]
  LinearWeight gate_up;    // gated
  LinearWeight down;
};

struct DecoderModel {
  const void* embedding;       // [vocab_size][hidden_size], contiguous
  const float* cos_sin;        // [max_position][rotary_dim], see rope_kv_write.h
  const DecoderLayer* layers;  // [num_layers]
  const float* final_norm;     // [hidden_size]
  LinearWeight head;           // to the vocabulary
  int64_t num_layers;
  int64_t hidden_size;
  int64_t num_heads;
  int64_t rotary_dim;
  float norm_eps;
  float attention_scale;
  DType embedding_dtype;
};

// What a step's time is spent on.
enum class DecoderStage : int32_t { kEmbedding, kQkv, kAttention, kOutput, kMlp, kHead };
constexpr int kNumDecoderStages = 6;

struct DecoderStepArgs {
  float* hidden;  // [num_samples][hidden_size], after the final norm
  float* logits;  // [num_samples][vocab_size], or null: not computed
  const DecoderModel* model;
  PagedPool pool;
  const int32_t* token_ids;      // [num_tokens]
  const int32_t* positions;      // [num_tokens]
  const int32_t* token_row;      // [num_tokens], row of the block table
  const int32_t* query_start;    // [num_seqs + 1]
  const int32_t* seq_lens;       // [num_seqs] tokens with cache, this step's included
  const int32_t* rows;           // [num_seqs], row of the block table
  const int32_t* sample_tokens;  // [num_samples] ascending indices into the tokens
  int64_t num_tokens;
  int64_t num_seqs;
  int64_t num_samples;
  int64_t* stage_ns;          // [kNumDecoderStages], added to; or null: not measured
  const int32_t* num_landed;  // layer groups of the pool that may be read, see landing.h; or null: all
};

// kWrongPacking where a weight was packed for another instruction set.
Status decoder_step_cpu(const DecoderStepArgs& args);

}  // namespace hocket
