// How long readers that gave no target bear with the prompts of others, so that first tokens come when they can.
//
// T: Estimates::ttft_seconds(), the time to the first token that this machine can keep.
//
//   as many   Prompts have as large a share of the time as those who wait for a first token are of all who wait or read
//             along, and four ninths at least, within what readers are promised.
//   in time   Whose first token can still come within kInTime of T gets the time for it: if the prompts up to that one
//             take w seconds of work and it has l seconds left, they need the share w / l of the time, and a step whose
//             decodes take d has it for them if it takes d / (1 - w / l).
//   late      Who has waited for longer than T stretches steps by the square of its wait over T, or long prompts would
//             queue at loads that the machine can carry.
//
// The last two to at most kMostStretch times what readers are promised.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>

#include "estimates/estimates.h"

namespace hocket {

class Patience {
 public:
  static constexpr double kInTime = 0.9;
  static constexpr double kMostStretch = 4.0;
  static constexpr double kLeastStretch = 1.8;  // of a step by prompts

  explicit Patience(const Estimates& estimates) : ttft_seconds_(estimates.ttft_seconds()) {}

  // No prompt after these can come in time.
  bool is_full() const { return work_seconds_ >= kInTime * ttft_seconds_; }

  // A prompt that the step may compute, in the order in which they are computed. work_seconds: that are left of it;
  // whatever it is once is_full().
  void add(double work_seconds, double waited_seconds) {
    ++num_waiting_;
    longest_wait_ = std::max(longest_wait_, waited_seconds);
    if (is_full()) return;
    work_seconds_ += work_seconds;
    const double left = kInTime * ttft_seconds_ - waited_seconds;
    if (work_seconds_ < left) share_ = std::max(share_, work_seconds_ / left);
  }

  // How many times as long as its decodes a step may take, for as many readers.
  double stretch(int64_t num_reading) const {
    const double crowd = static_cast<double>(num_waiting_) / static_cast<double>(std::max<int64_t>(1, num_reading));
    return std::max(kLeastStretch, 1 + crowd);
  }

  // To which prompts may stretch a step whose decodes take that long. usual_seconds: where nobody is pressed;
  // promised_seconds: between a reader's tokens.
  double seconds(double usual_seconds, double promised_seconds, double decode_seconds) const {
    const double waited = longest_wait_ / ttft_seconds_;
    const double late = usual_seconds * std::clamp(waited * waited, 1.0, kMostStretch);
    const double in_time = share_ > 0 ? decode_seconds / (1 - share_) : 0.0;
    return std::max(late, std::min(in_time, kMostStretch * promised_seconds));
  }

 private:
  double ttft_seconds_;
  int64_t num_waiting_ = 0;
  double longest_wait_ = 0.0;
  double work_seconds_ = 0.0;
  double share_ = 0.0;  // of the time, that prompts need
};

}  // namespace hocket
