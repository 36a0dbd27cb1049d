// How far steps that decode are off what the latency model says of them, by how many rows they have.
//
// The model is linear in their number; products compute rows in tiles, and rows that are only guessed (speculation.h)
// take work around the step that no other row takes. Among steps of one kind that is noise to the scheduler; whoever
// asks what one more row costs is told wrong. So plain steps and those with guesses are learnt apart, each by its
// number of rows, one that has hardly been seen like the others of its kind.
//
// What is not done is not learnt: while nobody guesses, the belief of steps with guesses fades, until one is tried.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "estimates/latency_model.h"

namespace hocket {

class RowCosts {
 public:
  static constexpr int32_t kMost = 128;  // rows; more are taken together: a tile is a small part of them

  // One executed step. Ignored if it computes prompts, is empty or took no time.
  void observe(const BatchFeatures& features, bool has_guesses, double predicted_seconds, double seconds) {
    const int32_t n = std::min(static_cast<int32_t>(features.num_decodes), kMost);
    if (features.num_chunks > 0 || n < 1 || !(predicted_seconds > 0) || !(seconds > 0)) return;
    const double off = std::log(std::clamp(seconds / predicted_seconds, 1 / kMostOff, kMostOff));
    Kind& kind = kinds_[has_guesses];
    kind.by_rows[n - 1].add(off);
    kind.all.add(off);
    num_unguessed_ = has_guesses ? 0 : num_unguessed_ + 1;
  }

  // Measured over predicted, of a step of so many rows; 1 before any has been seen.
  double factor(double num_rows, bool has_guesses) const {
    const int32_t n = std::min(static_cast<int32_t>(num_rows), kMost);
    if (n < 1) return 1.0;
    const Kind& kind = kinds_[has_guesses];
    const Mean& own = kind.by_rows[n - 1];
    const double all = kind.all.sum / (kind.all.weight + kDoubt);
    const double off = (own.sum + kDoubt * all) / (own.weight + kDoubt);
    return std::exp(has_guesses ? off * std::exp(-num_unguessed_ / kFading) : off);
  }

 private:
  static constexpr double kMemory = 0.98;   // of the last fifty steps
  static constexpr double kDoubt = 2.0;     // steps
  static constexpr double kMostOff = 2.0;   // a pause of the machine is no tile
  static constexpr double kFading = 500.0;  // steps

  struct Mean {
    double sum = 0;  // of logarithms
    double weight = 0;
    void add(double value) {
      sum = kMemory * sum + value;
      weight = kMemory * weight + 1;
    }
  };
  struct Kind {
    Mean all;
    std::array<Mean, kMost> by_rows = {};
  };

  std::array<Kind, 2> kinds_ = {};  // by whether they have guesses
  double num_unguessed_ = 0;        // steps since one had
};

}  // namespace hocket
