#include "estimates/latency_model.h"

#include <algorithm>

namespace hocket {

void LatencyBatch::change_chunk(int64_t context, int64_t tokens, double sign) {
  features_.add_chunk(static_cast<double>(context), static_cast<double>(tokens), sign);
}

void LatencyBatch::add_decode(int32_t context) {
  contexts_.add(context);
  features_.add_decode(context);
}

void LatencyBatch::remove_decode(int32_t context) {
  contexts_.remove(context);
  features_.num_decodes -= 1;
  features_.decode_context -= context;
  features_.max_context = std::max(contexts_.max(), max_fixed_);
}

void LatencyBatch::clear() {
  contexts_.clear();
  max_fixed_ = 0;
  features_ = {};
}

LatencyModel::Linear LatencyModel::linear() const {
  const LatencyCoefficients& k = coefficients_;
  return {k.step_base,   k.prefill_floor, k.prefill_pair,   k.prefill_token,      k.prefill_context,    k.prefill_chunk,
          k.decode_base, k.decode_seq,    k.decode_context, k.decode_max_context, k.decode_far_context, k.hidden_token};
}

void LatencyModel::set_linear(const Linear& x) {
  const LatencyCoefficients& k = coefficients_;
  coefficients_ = {x[0], x[1], x[2],  x[3],  x[4],      x[5],           x[6],          x[7],
                   x[8], x[9], x[10], x[11], k.overlap, k.near_context, k.near_evicted};
}

double LatencyModel::far_context(const BatchFeatures& f) const {
  const LatencyCoefficients& k = coefficients_;
  const double near = std::max(0.0, k.near_context - k.near_evicted * f.chunk_tokens);
  return std::max(0.0, f.decode_context - near);
}

LatencyModel::Parts LatencyModel::parts(const BatchFeatures& f) const {
  const LatencyCoefficients& k = coefficients_;
  const bool is_echo = form_ == LatencyForm::kEcho;
  Parts parts;
  parts.has_prefill = f.num_chunks > 0;
  parts.has_decode = f.num_decodes > 0 || (!is_echo && f.hidden_tokens > 0);
  if (parts.has_prefill) {
    double sum = k.prefill_pair * (is_echo ? f.chunk_squares : f.chunk_pairs) + k.prefill_token * f.chunk_tokens;
    if (!is_echo) sum += k.prefill_context * f.chunk_context + k.prefill_chunk * f.num_chunks;
    parts.is_at_floor = sum < k.prefill_floor;
    parts.prefill = std::max(sum, k.prefill_floor);
  }
  if (f.num_decodes > 0) {
    parts.decode = k.decode_max_context * f.max_context;
    parts.decode += is_echo ? k.decode_context * f.decode_context / f.num_decodes
                            : k.decode_base + k.decode_seq * f.num_decodes + k.decode_context * f.decode_context +
                                  k.decode_far_context * far_context(f);
  }
  if (!is_echo) parts.decode += k.hidden_token * f.hidden_tokens;
  return parts;
}

LatencyModel::Weights LatencyModel::weights(const Parts& parts) const {
  if (!parts.has_prefill || !parts.has_decode) return {1.0, 1.0};
  const double longer = form_ == LatencyForm::kEcho ? coefficients_.overlap : 1.0;
  const double shorter = 1.0 - coefficients_.overlap;
  return parts.prefill >= parts.decode ? Weights{longer, shorter} : Weights{shorter, longer};
}

double LatencyModel::predict(const BatchFeatures& f) const {
  const Parts part = parts(f);
  const Weights weight = weights(part);
  const bool has_base = form_ == LatencyForm::kCorrected && (part.has_prefill || part.has_decode);
  const double base = has_base ? coefficients_.step_base : 0.0;
  return base + weight.prefill * part.prefill + weight.decode * part.decode;
}

LatencyModel::Linear LatencyModel::regressors(const BatchFeatures& f) const {
  const Parts part = parts(f);
  const Weights weight = weights(part);
  const bool is_echo = form_ == LatencyForm::kEcho;
  Linear x{};
  if (part.is_at_floor) {
    x[1] = weight.prefill;
  } else {
    x[2] = weight.prefill * (is_echo ? f.chunk_squares : f.chunk_pairs);
    x[3] = weight.prefill * f.chunk_tokens;
    x[4] = is_echo ? 0.0 : weight.prefill * f.chunk_context;
    x[5] = is_echo ? 0.0 : weight.prefill * f.num_chunks;
  }
  x[9] = weight.decode * f.max_context;
  if (is_echo) {
    x[8] = f.num_decodes > 0 ? weight.decode * f.decode_context / f.num_decodes : 0.0;
    return x;
  }
  x[0] = part.has_prefill || part.has_decode ? 1.0 : 0.0;
  x[6] = f.num_decodes > 0 ? weight.decode : 0.0;
  x[7] = weight.decode * f.num_decodes;
  x[8] = weight.decode * f.decode_context;
  x[10] = weight.decode * far_context(f);
  x[11] = weight.decode * f.hidden_tokens;
  return x;
}

}  // namespace hocket
