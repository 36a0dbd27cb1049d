// Whose a request is: everything that is counted or forecast apart for people, for batches and for drafts.
#pragma once

#include <cstdint>

namespace hocket {

// The three kinds of traffic, in order of precedence. Plain numbers: most of what is kept by class is an array.
enum RequestClass : int32_t { kOnlineClass = 0, kOfflineClass = 1, kAdvisoryClass = 2 };
inline constexpr int32_t kNumRequestClasses = 3;

}  // namespace hocket
