// How many tokens are guessed behind each request's known ones in the open plan. Where nobody has a guess, which is
// every step without speculation, asking costs one comparison.
//
// Thread safety: none. Allocation: as PerRequest.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "requests/per_request.h"
#include "requests/request.h"

namespace hocket {

class GuessCounts {
 public:
  // `requests` outlives this.
  explicit GuessCounts(const RequestTable* requests) : of_(requests) {}

  bool any() const { return num_all_ > 0; }
  int32_t operator[](Slot slot) const { return any() ? of_[slot] : 0; }

  // REQUIRES: the request has none.
  void set(Slot slot, int32_t num_guesses) {
    of_[slot] = num_guesses;
    num_all_ += num_guesses;
  }
  // The request has none from now on. Returns how many it had.
  int32_t take(Slot slot) {
    const int32_t num_guesses = (*this)[slot];
    if (num_guesses > 0) set(slot, 0);
    num_all_ -= num_guesses;
    return num_guesses;
  }

 private:
  PerRequest<int32_t> of_;
  int32_t num_all_ = 0;
};

}  // namespace hocket
