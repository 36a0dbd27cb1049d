// A threshold on probability instead of a sort: radix selection on the bits of positive floats, whose order is theirs.
#include "draw_tokens.h"

#include "kernels.h"
#include "simd.h"
#include "threads/parallel.h"
#include "threads/thread_pool.h"
#include "token_mask.h"

namespace hocket::cpu::HOCKET_ISA {
namespace {

constexpr int64_t kSpan =
    256;  // tokens that are looked at together: their weights are summed in float32, spans in float64

// Infinity if one of them is NaN.
float largest(const float* x, int64_t n) {
  const Vec infinity = splat(kInfinity);
  Vec tops = splat(-kInfinity);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Vec v = load(x + i);
    tops = max(select(v < infinity, v, infinity), tops);
  }
  float top = max_lane(tops);
  for (; i < n; ++i) top = max(x[i] < kInfinity ? x[i] : kInfinity, top);
  return top;
}

// The first of the largest; kNoToken if the largest is not finite, or one is NaN.
int32_t argmax(const float* x, int64_t n) {
  float top = -kInfinity;
  int64_t span = 0;  // where it lies
  for (int64_t i = 0; i < n; i += kSpan) {
    const float of_span = largest(x + i, min(kSpan, n - i));
    if (of_span > top) {
      top = of_span;
      span = i;
    }
  }
  if (!(top < kInfinity)) return kNoToken;
  for (int64_t i = span; i < n; ++i) {
    if (x[i] == top && top > -kInfinity) return static_cast<int32_t>(i);
  }
  return kNoToken;
}

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// In [0, 1).
double uniform(uint64_t seed, int64_t index) {
  const uint64_t bits = mix(mix(seed) + 0x9E3779B97F4A7C15u * static_cast<uint64_t>(index)) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// The weights of one row: exp((logit - largest) / temperature), all positive or 0, the largest 1.
class Weights {
 public:
  // largest: of the allowed logits. mask: null: all are allowed.
  Weights(const float* logits, const uint32_t* mask, int64_t n, float largest, float temperature, float* weights)
      : weights_(weights), n_(n) {
    const float top = largest / temperature;
    if (mask != nullptr) {
      weigh_allowed(logits, mask, temperature, top);
      return;
    }
    for (int64_t i = 0; i < n; i += kWidth) {
      const Vec weight = exp(load_up_to(logits + i, n - i) / temperature - top);
      i + kWidth <= n ? store(weights + i, weight) : store_first(weights + i, weight, n - i);
    }
  }

  int64_t num_at_least(float least) const {
    int64_t num = 0;
    for (int64_t i = 0; i < n_; ++i) num += weights_[i] >= least;
    return num;
  }

  // Sum of the weights of at least `least` in [begin, end), at most kSpan of them.
  double span_mass(int64_t begin, int64_t end, float least) const {
    Vec mass{};
    int64_t i = begin;
    for (; i + kWidth <= end; i += kWidth) {
      const Vec weight = load(weights_ + i);
      mass += weight >= least ? weight : Vec{};
    }
    float rest = 0;
    for (; i < end; ++i) rest += weights_[i] >= least ? weights_[i] : 0.0f;
    return static_cast<double>(sum(mass) + rest);
  }

  double mass(float least) const {
    double total = 0;
    for (int64_t i = 0; i < n_; i += kSpan) total += span_mass(i, min(i + kSpan, n_), least);
    return total;
  }

  // The first token whose cumulated weight exceeds `share` of the whole, among weights of at least `least`.
  int32_t token_at(double share, float least) const {
    const double target = share * mass(least);
    double cumulated = 0;
    int64_t last = n_ - 1;
    for (int64_t i = 0; i < n_; i += kSpan) {
      const int64_t end = min(i + kSpan, n_);
      const double mass = span_mass(i, end, least);
      if (!(cumulated + mass > target)) {
        cumulated += mass;
        continue;
      }
      for (int64_t j = i; j < end; ++j) {
        if (weights_[j] < least || weights_[j] == 0) continue;
        last = j;
        cumulated += static_cast<double>(weights_[j]);
        if (cumulated > target) break;
      }
      return static_cast<int32_t>(last);
    }
    return static_cast<int32_t>(last);
  }

  struct Cut {
    float least;      // the smallest weight within
    int64_t greater;  // how many are greater
    double mass;      // of those that are greater
  };

  // Weights in descending order, until `is_enough(number, mass)` of those so far; bits are fixed from the top down.
  template <class IsEnough>
  Cut cut(const IsEnough& is_enough) {
    uint32_t prefix = 0;
    Cut cut{0, 0, 0};
    for (int shift = 20; shift >= 0; shift -= 10) {
      count(prefix, shift);
      uint32_t digit = kBuckets - 1;
      for (; digit > 0; --digit) {
        const Bucket& bucket = buckets_[digit];
        if (is_enough(cut.greater + bucket.num, cut.mass + bucket.mass)) break;
        cut.greater += bucket.num;
        cut.mass += bucket.mass;
      }
      prefix = prefix << 10 | digit;
    }
    cut.least = bit_cast<float>(prefix);
    return cut;
  }

 private:
  // Forms allow few tokens at most places: vectors of which none is allowed are not even read.
  void weigh_allowed(const float* logits, const uint32_t* mask, float temperature, float top) {
    constexpr uint32_t kAll = (1u << kWidth) - 1;
    const IntVec lanes = lane_bits();
    for (int64_t i = 0; i < n_; i += kWidth) {
      const uint32_t bits = mask[i / kWordBits] >> (i % kWordBits) & kAll;
      Vec weight{};
      if (bits != 0) {
        weight = exp(load_up_to(logits + i, n_ - i) / temperature - top);
        if (bits != kAll) weight = select((splat(static_cast<int32_t>(bits)) & lanes) != 0, weight, Vec{});
      }
      i + kWidth <= n_ ? store(weights_ + i, weight) : store_first(weights_ + i, weight, n_ - i);
    }
  }

  struct Bucket {
    int64_t num;
    double mass;
  };
  static constexpr uint32_t kBuckets = 1024;  // a weight is at most 1, which has 30 bits: three digits of ten

  // Into buckets by the digit at `shift`, the weights whose digits above it are `prefix`.
  void count(uint32_t prefix, int shift) {
    for (Bucket& bucket : buckets_) bucket = {0, 0};
    for (int64_t i = 0; i < n_; ++i) {
      const uint32_t bits = bit_cast<uint32_t>(weights_[i]);
      if (bits >> shift >> 10 != prefix) continue;
      Bucket& bucket = buckets_[bits >> shift & (kBuckets - 1)];
      bucket.num += 1;
      bucket.mass += static_cast<double>(weights_[i]);
    }
  }

  float* weights_;
  int64_t n_;
  Bucket buckets_[kBuckets];
};

// The least weight that the filters keep.
float least_kept(Weights& weights, int64_t vocab_size, int64_t top_k, float top_p, float min_p) {
  int64_t num_kept = min_p > 0 ? max<int64_t>(1, weights.num_at_least(min_p)) : vocab_size;
  if (top_k > 0) num_kept = min(num_kept, top_k);
  float least = 0;
  double mass = 0;
  if (num_kept < vocab_size) {
    const auto cut = weights.cut([&](int64_t num, double) { return num >= num_kept; });
    least = cut.least;
    mass = cut.mass + static_cast<double>(num_kept - cut.greater) * static_cast<double>(least);
  } else if (top_p < 1) {
    mass = weights.mass(0);
  }
  if (top_p < 1) {
    const double wanted = static_cast<double>(top_p) * mass;
    // One at least: a top_p that float32 rounds to 0 would else be content with none.
    const auto is_enough = [&](int64_t num, double so_far) { return num > 0 && so_far >= wanted; };
    least = max(least, weights.cut(is_enough).least);
  }
  return least;
}

int32_t draw(const DrawTokensArgs& args, int64_t row) {
  const int64_t n = args.vocab_size;
  const float* logits = args.logits + row * n;
  const uint32_t* mask = args.masks == nullptr ? nullptr : args.masks[row];
  const int32_t likeliest = mask == nullptr ? argmax(logits, n) : argmax_of_allowed(logits, mask, n);
  if (likeliest == kNoToken || args.temperature == nullptr || args.temperature[row] == 0) return likeliest;
  float* memory = static_cast<float*>(scratch(Scratch::kItem, static_cast<size_t>(n) * sizeof(float)));
  Weights weights(logits, mask, n, logits[likeliest], args.temperature[row], memory);
  const float least = least_kept(weights, n, args.top_k[row], args.top_p[row], args.min_p[row]);
  return weights.token_at(uniform(args.seed[row], args.index[row]), least);
}

}  // namespace

Status draw_tokens(const DrawTokensArgs& args) {
  const int64_t cost = args.temperature == nullptr ? args.vocab_size / 4 : 8 * args.vocab_size;
  parallel_ranges(args.num_rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) args.tokens[row] = draw(args, row);
  });
  return Status::kOk;
}

}  // namespace hocket::cpu::HOCKET_ISA
