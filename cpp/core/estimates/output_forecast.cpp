#include "estimates/output_forecast.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace hocket {
namespace {

constexpr float kFading = 0.998F;     // per answer: some 500 count
constexpr float kPriorWeight = 5.0F;  // answers
constexpr float kPriorMean = 256.0F;  // tokens

}  // namespace

// Octaves by the highest bit, eighths by the next three: no logarithm.
int32_t OutputForecast::bin_of(int32_t num_tokens) {
  const auto value = static_cast<uint32_t>(std::max(num_tokens, 0)) + 8;  // bins of one token at first
  const int32_t octave = std::bit_width(value) - 1;
  const auto eighth = static_cast<int32_t>(value >> (octave - 3) & 7);
  return std::min((octave - 3) * kBinsPerOctave + eighth, kNumBins - 1);
}

OutputForecast::OutputForecast(double quantile) : quantile_(static_cast<float>(quantile)) {
  for (int32_t bin = 0; bin < kNumBins; ++bin) {
    const float scale = std::exp2(static_cast<float>(bin / kBinsPerOctave));
    middles_[bin] = scale * (8.0F + static_cast<float>(bin % kBinsPerOctave) + 0.5F) - 8.0F;
  }
  for (int32_t of_class = 0; of_class < kNumRequestClasses; ++of_class) {
    float before = 1.0F;  // share of geometric lengths above the bins so far
    for (int32_t bin = 0; bin < kNumBins; ++bin) {
      const float scale = std::exp2(static_cast<float>(bin / kBinsPerOctave));
      const float after = std::exp(-(middles_[bin] + 0.5F * scale) / kPriorMean);
      weights_[of_class][bin] = kPriorWeight * std::max(before - after, 1e-9F);
      before = after;
    }
    refresh(of_class);
  }
}

void OutputForecast::observe(int32_t request_class, int32_t num_tokens) {
  Bins& weights = weights_[request_class];
  for (float& weight : weights) weight *= kFading;
  weights[bin_of(num_tokens)] += 1.0F;
  refresh(request_class);
}

void OutputForecast::refresh(int32_t request_class) {
  const Bins& weights = weights_[request_class];
  Bins* rest = &rest_[request_class];
  quantile_ > 0.0F ? refresh_quantiles(weights, rest) : refresh_means(weights, rest);
}

void OutputForecast::refresh_means(const Bins& weights, Bins* rest) const {
  float weight = 0.0F;
  float tokens = 0.0F;  // of answers in this bin and above
  for (int32_t bin = kNumBins - 1; bin >= 0; --bin) {
    weight += weights[bin];
    tokens += weights[bin] * middles_[bin];
    (*rest)[bin] = std::max(1.0F, weight > 0.0F ? tokens / weight - middles_[bin] : 1.0F);
  }
}

// The length that a share of those in a bin and above do not exceed falls with the bin, so that one pass finds them
// all.
void OutputForecast::refresh_quantiles(const Bins& weights, Bins* rest) const {
  float weight = 0.0F;  // in this bin and above
  float longer = 0.0F;  // in the bins above that of the quantile
  int32_t length = kNumBins - 1;
  for (int32_t bin = kNumBins - 1; bin >= 0; --bin) {
    weight += weights[bin];
    for (; length > bin && longer + weights[length] <= (1.0F - quantile_) * weight; --length) {
      longer += weights[length];
    }
    (*rest)[bin] = std::max(1.0F, middles_[length] - middles_[bin]);
  }
}

}  // namespace hocket
