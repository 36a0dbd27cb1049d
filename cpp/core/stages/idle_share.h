// How much of the time of steps in which somebody is served goes to work that has to stand back behind them: offline
// work beside online requests without an ITL target, drafts beside everybody.
//
// It may lengthen each such step by kShare, as predicted, and add that share of its tokens. The second bound asks no
// prediction: a step's time per token falls as tokens are added, so it holds even if the model, which learns from these
// very steps, takes the time of the work for that of the others. A step is often too short for any of it, and who
// stands back must not starve for as long as somebody decodes; so the same share of the time is saved up, and every
// kSteps steps one step may be longer by what was saved. That is less than one gap in a hundred: it moves no p99. Where
// nobody is served the work runs freely, and nothing is saved.
//
// Thread safety: none. No allocation.
#pragma once

#include <cstdint>
#include <limits>

namespace hocket {

// What a step may become with such work: seconds, and tokens of the work.
struct IdleRoom {
  double seconds = std::numeric_limits<double>::infinity();
  int32_t tokens = std::numeric_limits<int32_t>::max();
};

class IdleShare {
 public:
  static constexpr double kShare = 0.05;
  static constexpr int32_t kSteps = 256;

  // By which the next step may be longer, beside its kShare.
  double saved_seconds(double now) const { return num_steps_ < kSteps ? 0.0 : kShare * (now - since_); }

  // Beside a step of so many tokens that takes `seconds` by itself. saved: saved_seconds().
  static IdleRoom room_beside(double seconds, int32_t num_tokens, double saved) {
    IdleRoom room{(1 + kShare) * seconds + saved};
    if (saved <= 0) room.tokens = static_cast<int32_t>(kShare * num_tokens);
    return room;
  }

  // A step has ended. is_served: somebody was, before whom the work has to stand back. has_idle: there was such work.
  void note_step(bool is_served, bool has_idle, double now) {
    const bool is_spent = has_idle && num_steps_ >= kSteps;
    if (is_served && !is_spent) {
      ++num_steps_;
    } else {
      num_steps_ = 0;
      since_ = now;
    }
  }

 private:
  int32_t num_steps_ = 0;  // since `since_`
  double since_ = 0.0;     // seconds
};

}  // namespace hocket
