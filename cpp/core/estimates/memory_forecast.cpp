#include "estimates/memory_forecast.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace hocket {

void MemoryForecast::Sums::add(double duration, double value) {
  seconds += duration;
  units += duration * value;
  squares += duration * value * value;
}

void MemoryForecast::Sums::add(const Sums& other) {
  seconds += other.seconds;
  units += other.units;
  squares += other.squares;
}

MemoryForecast::MemoryForecast(const MemoryForecastOptions& options)
    : options_(options), bucket_seconds_(options.window_seconds / options.num_buckets), buckets_(options.num_buckets) {
  HOCKET_CHECK(options.window_seconds > 0 && options.num_buckets >= 2, "a forecast needs a window and two buckets");
}

void MemoryForecast::update(double now, int64_t units) {
  if (!has_begun_) {
    has_begun_ = true;
    begin_ = last_time_ = now;
  }
  HOCKET_CHECK(now >= last_time_, "time went back");
  const auto bucket = static_cast<int64_t>((now - begin_) / bucket_seconds_);
  if (bucket > current_) move_to(bucket);
  slot(current_).add(now - last_time_, units_);
  last_time_ = now;
  units_ = static_cast<double>(units);
}

// Fills the buckets in between with what stood. Where more than a window has passed, all before it is forgotten.
void MemoryForecast::move_to(int64_t bucket) {
  if (bucket - current_ > options_.num_buckets) {
    current_ = bucket - options_.num_buckets;
    last_time_ = start_of(current_);
  }
  while (current_ < bucket) {
    const double end = std::max(last_time_, start_of(current_ + 1));
    slot(current_).add(end - last_time_, units_);
    last_time_ = end;
    slot(++current_) = {};
  }
  past_ = {};
  for (int64_t b = 1; b < options_.num_buckets; ++b) past_.add(slot(current_ + b));
}

double MemoryForecast::mean() const {
  const double seconds = past_.seconds + slot(current_).seconds;
  return seconds > 0.0 ? (past_.units + slot(current_).units) / seconds : 0.0;
}

double MemoryForecast::deviation() const {
  const double seconds = past_.seconds + slot(current_).seconds;
  if (seconds <= 0.0) return 0.0;
  const double mu = mean();
  return std::sqrt(std::max(0.0, (past_.squares + slot(current_).squares) / seconds - mu * mu));
}

int64_t MemoryForecast::reserve(double num_deviations) const {
  return static_cast<int64_t>(std::ceil(std::max(0.0, mean() + num_deviations * deviation() - units_)));
}

}  // namespace hocket
