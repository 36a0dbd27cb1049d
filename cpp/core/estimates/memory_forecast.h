// How much memory will online requests soon want? (Echo section 5.3)
//
// Mean mu and deviation sigma of the units that online requests hold, over a sliding window (an hour), weighted by
// time: a value counts for as long as it stood. Offline work must leave  reserve = max(0, mu + k sigma - online use
// now);  k: 2 covers 95 % of the time if use is normally distributed, 1 covers 84 %.
//
// The window moves in buckets: it covers the current bucket and the num_buckets - 1 before it, so between
// (num_buckets - 1) / num_buckets of window_seconds and all of it, less while the forecast is younger.
//
// update() is O(1) while time stays in a bucket and O(num_buckets) when it enters a new one. Sums over the window are
// formed anew then, so nothing drifts. No allocation after construction. Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

namespace hocket {

struct MemoryForecastOptions {
  double window_seconds = 3600.0;
  int32_t num_buckets = 120;  // larger: smoother, slower by nanoseconds
};

class MemoryForecast {
 public:
  // REQUIRES: window_seconds > 0, num_buckets >= 2.
  explicit MemoryForecast(const MemoryForecastOptions& options = {});

  // From `now` on online requests hold `units`.
  // REQUIRES: now, in seconds, never goes back.
  void update(double now, int64_t units);

  // Of the time until the last update; 0 before any has passed.
  double mean() const;
  double deviation() const;

  // Units that offline work must leave free beyond what online requests hold now, rounded up. num_deviations: k >= 0.
  int64_t reserve(double num_deviations) const;

 private:
  struct Sums {  // integrals over time
    double seconds = 0.0;
    double units = 0.0;
    double squares = 0.0;

    void add(double duration, double value);
    void add(const Sums& other);
  };

  // Bucket b covers begin_ + [b, b + 1) * bucket_seconds_.
  double start_of(int64_t bucket) const { return begin_ + static_cast<double>(bucket) * bucket_seconds_; }
  Sums& slot(int64_t bucket) { return buckets_[bucket % options_.num_buckets]; }
  const Sums& slot(int64_t bucket) const { return buckets_[bucket % options_.num_buckets]; }
  void move_to(int64_t bucket);

  MemoryForecastOptions options_;
  double bucket_seconds_;
  std::vector<Sums> buckets_;  // ring of the last num_buckets
  Sums past_;                  // all but the current bucket
  int64_t current_ = 0;
  bool has_begun_ = false;
  double begin_ = 0.0;
  double last_time_ = 0.0;
  double units_ = 0.0;
};

}  // namespace hocket
