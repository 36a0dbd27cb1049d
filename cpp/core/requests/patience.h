// How long readers that gave no target bear with the prompts of others, so that first tokens come when they can.
//
// T: Estimates::ttft_seconds(), the time to the first token that this machine can keep.
//
//   as many   Prompts have as large a share of the time as those who wait for a first token are of all who wait or read
//             along, and four ninths at least, within what readers are promised.
//   due       Who has waited for longer than its own T: kDueTimes what its prompt takes alone, kDueSeconds at least, T
//             at most. A step may then be kDrain times as long as leaves its decodes the share of time that they had
//             lately, if that is more, since at that share no queue becomes shorter; kMostDueStretch times its decodes
//             at most, since what prompts had in a burst is not what arrivals need. And what is promised is stretched
//             by the square of that wait over its T: where decodes alone nearly fill it, prompts would stand still.
//   in time   Whose first token can still come within kInTime of T gets the time for it: if the prompts up to that one
//             take w seconds of work and it has l seconds left, they need the share w / l of the time, and a step whose
//             decodes take d has it for them if it takes d / (1 - w / l).
//   late      Who has waited for kLate T stretches steps kMostStretch times, share or not, or long prompts would stand
//             in line at loads that the machine can carry; at once, since a few long steps break what is promised more
//             rarely than many that are a little too long.
//
// The last three to at most kMostStretch times what readers are promised. How that is spread over steps, evenly or as a
// long one now and then: long_steps.h.
//
// Who gives no target goes first whose first token is expected first: after kDueTimes what its prompt takes alone,
// kExpectedTimes T at least. With a shorter one, prompts that can still come in T would wait for shorter ones.
//
// Thread safety: none. No allocation.
#pragma once

#include <algorithm>
#include <limits>

#include "estimates/estimates.h"

namespace hocket {

class Patience {
 public:
  static constexpr double kInTime = 0.9;
  static constexpr double kLate = 1.5;                                 // T
  static constexpr double kMostStretch = 8.0;                          // of what is promised
  static constexpr double kLeastStretch = 1.8, kMostDueStretch = 2.2;  // of decodes
  static constexpr double kDueTimes = 4.0;
  static constexpr double kDueSeconds = 1.0;
  static constexpr double kExpectedTimes = 2.0;  // T
  static constexpr double kDrain = 1.1;
  static constexpr double kLeastShare = 0.01;  // of decodes

  // prompt_share: of the time, that prompts had lately.
  explicit Patience(const Estimates& estimates, double prompt_share = 0.0)
      : ttft_seconds_(estimates.ttft_seconds()), due_stretch_(kDrain / std::max(kLeastShare, 1 - prompt_share)) {}

  // After which the first token of such a prompt is expected. alone_seconds: that it takes with nothing beside it.
  static double expected_seconds(const Estimates& estimates, double alone_seconds) {
    return std::max(kExpectedTimes * estimates.ttft_seconds(), kDueTimes * alone_seconds);
  }

  // No prompt after these can come in time.
  bool is_full() const { return work_seconds_ >= kInTime * ttft_seconds_; }

  // A prompt that the step may compute, in order of arrival; that in which they are computed says the same of simulated
  // traces. work_seconds: that are left of it; whatever it is once is_full(). alone_seconds: of all of it that was not
  // cached.
  void add(double work_seconds, double waited_seconds, double alone_seconds) {
    ++num_waiting_;
    longest_wait_ = std::max(longest_wait_, waited_seconds);
    const double due = std::min(std::max(kDueSeconds, kDueTimes * alone_seconds), ttft_seconds_);
    longest_overdue_ = std::max(longest_overdue_, waited_seconds / due);
    if (is_full()) return;
    work_seconds_ += work_seconds;
    const double left = kInTime * ttft_seconds_ - waited_seconds;
    if (work_seconds_ < left) share_ = std::max(share_, work_seconds_ / left);
  }

  // As many wait for a first token as read along.
  bool is_crowd(int64_t num_reading) const { return num_waiting_ >= num_reading; }

  // Of the prompts; infinite once is_full().
  double work_seconds() const { return is_full() ? std::numeric_limits<double>::infinity() : work_seconds_; }

  // How many times as long as its decodes a step may take, for as many readers.
  double stretch(int64_t num_reading) const {
    const double crowd = static_cast<double>(num_waiting_) / static_cast<double>(std::max<int64_t>(1, num_reading));
    const double least =
        longest_overdue_ > 1 ? std::clamp(due_stretch_, kLeastStretch, kMostDueStretch) : kLeastStretch;
    return std::max(least, 1 + crowd);
  }

  // How many times what readers are promised a step may take for those who are due.
  double leniency() const { return std::clamp(longest_overdue_ * longest_overdue_, 1.0, kMostStretch); }

  // To which prompts may stretch a step whose decodes take that long. usual_seconds: where nobody is pressed;
  // due_seconds: where the promise is stretched; promised_seconds: between a reader's tokens.
  double seconds(double usual_seconds, double due_seconds, double promised_seconds, double decode_seconds) const {
    const double late = usual_seconds * (longest_wait_ > kLate * ttft_seconds_ ? kMostStretch : 1.0);
    const double in_time = share_ > 0 ? decode_seconds / (1 - share_) : 0.0;
    return std::max({late, due_seconds, std::min(in_time, kMostStretch * promised_seconds)});
  }

 private:
  double ttft_seconds_;
  double due_stretch_;
  int64_t num_waiting_ = 0;
  double longest_wait_ = 0.0;
  double longest_overdue_ = 0.0;  // relative to its own T
  double work_seconds_ = 0.0;
  double share_ = 0.0;  // of the time, that prompts need
};

}  // namespace hocket
