// Of the predicted time of steps, the share that online prompts had lately beside decodes.
//
// Thread safety: none. No allocation.
#pragma once

namespace hocket {

class PromptShare {
 public:
  static constexpr double kMemory = 0.99;  // of a step once the next has come: a hundred count

  // A step with online work takes `seconds`, its decodes alone decode_seconds.
  void note_step(double decode_seconds, double seconds) {
    prompt_seconds_ = kMemory * prompt_seconds_ + (seconds - decode_seconds);
    seconds_ = kMemory * seconds_ + seconds;
  }
  double value() const { return seconds_ > 0 ? prompt_seconds_ / seconds_ : 0.0; }

 private:
  double prompt_seconds_ = 0.0;
  double seconds_ = 0.0;
};

}  // namespace hocket
